"use strict";
// Numbers to positions and to text.

const PREFIXES = {
  s: [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]],
  B: [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]],
};

/** A number as text, with four significant digits unless told: 12,345 or 0.1235 or 3.2 ms. */
function format(value, unit = "", digits = 4) {
  if (value === null || !Number.isFinite(value)) return "–";
  const steps = PREFIXES[unit];
  if (steps) {
    const [size, name] = steps.find(([step]) => Math.abs(value) >= step) || steps[steps.length - 1];
    return `${format(value / size, "", digits)} ${name}`;
  }
  const magnitude = Math.abs(value);
  if (value !== 0 && (magnitude < 1e-3 || magnitude >= 1e7)) return value.toExponential(digits - 1).replace(/\.?0+e/, "e");
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return value.toLocaleString("en", { maximumSignificantDigits: Math.max(digits, Math.ceil(Math.log10(magnitude))) });
}

/** From a domain [low, high] to a range [start, end], with ticks about `spacing` pixels apart. Values beyond a logarithm are never passed. */
function makeScale(domain, range, log, spacing, preferred = []) {
  const whole = preferred.length > 0 && preferred.every(Number.isInteger);
  const map = log ? Math.log10 : (value) => value;
  const [low, high] = domain.map(map);
  const scale = (value) => range[0] + ((map(value) - low) / (high - low)) * (range[1] - range[0]);
  const room = Math.max(2, Math.floor(Math.abs(range[1] - range[0]) / spacing));
  const suits = log && preferred.length > 1 && preferred.length <= room;
  scale.ticks = suits ? preferred : log ? logTicks(domain, room) : linearTicks(domain, room, whole);
  return scale;
}

function linearTicks([low, high], room, whole = false) {
  const rough = Math.max((high - low) / room, whole ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((nice) => nice * power).find((nice) => nice >= rough);
  const ticks = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at += 1) ticks.push(Number((at * step).toPrecision(12)));
  return ticks;
}

function logTicks([low, high], room) {
  const decades = Math.log10(high / low);
  const every = Math.max(1, Math.ceil(decades / room));
  const within = decades * 3 <= room + 1 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += every) {
    for (const nice of within) {
      const tick = Number(`${nice}e${power}`);
      if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push(tick);
    }
  }
  return ticks.length > 1 ? ticks : linearTicks([low, high], room).filter((tick) => tick > 0);
}

/** The extent of values with some air, or null when there are none. */
function extent(values, log, air) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return null;
  if (low === high) return log ? [low / 2, high * 2] : [low - (Math.abs(low) / 2 || 1), high + (Math.abs(high) / 2 || 1)];
  if (log) return [low / (high / low) ** air, high * (high / low) ** air];
  return [low - air * (high - low), high + air * (high - low)];
}

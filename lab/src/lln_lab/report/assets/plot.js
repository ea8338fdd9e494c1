"use strict";
// Line plots: selectors choose lines, the legend hides them, pointer and arrow keys read values.

const HEIGHT = 320;
const SPACING_X = 70; // pixels between ticks
const SPACING_Y = 45;
const NARROW = 560;
const MOST_READ = 12; // rows of a reading
const MARKERS = [
  "M-3.2,0a3.2,3.2 0 1,0 6.4,0a3.2,3.2 0 1,0 -6.4,0Z",
  "M-2.9,-2.9H2.9V2.9H-2.9Z",
  "M0,-3.9L3.7,2.7H-3.7Z",
  "M0,-4.2L4.2,0L0,4.2L-4.2,0Z",
  "M0,3.9L3.7,-2.7H-3.7Z",
  "M-1.3,-3.6H1.3V-1.3H3.6V1.3H1.3V3.6H-1.3V1.3H-3.6V-1.3H-1.3Z",
];

/** A colour along the scale of things that have an order, from 0 to 1. */
function along(share) {
  const [from, to, part] = share < 0.5 ? ["first", "middle", 2 * share] : ["middle", "last", 2 * share - 1];
  return `color-mix(in oklab, var(--scale-${from}), var(--scale-${to}) ${Math.round(100 * part)}%)`;
}

class LinePlot {
  constructor(figure, data) {
    this.data = data;
    this.chosen = data.selectors.map(() => 0);
    this.hidden = new Set();
    this.log = null; // the axis decides until the reader does
    this.at = null; // the x that is read
    this.controls = element("div", { class: "controls" });
    this.svg = shape("svg", { "aria-hidden": "true" });
    this.reading = element("div", { class: "reading", role: "status", hidden: true });
    this.area = element("div", {
      class: "area",
      tabindex: "0",
      role: "group",
      "aria-label": `${data.title}: left and right arrow keys read values`,
      onpointermove: (event) => this.point(event),
      onpointerdown: (event) => this.point(event),
      onpointerleave: () => this.read(null),
      onblur: () => this.read(null),
      onkeydown: (event) => this.key(event),
    }, this.svg, this.reading);
    this.legend = element("ul", { class: "legend", "aria-label": "Lines" });
    this.values = element("details", { class: "values", ontoggle: () => this.tabulate() }, element("summary", {}, "Values as a table"));
    figure.append(this.controls, this.area, this.legend, this.values);
    this.buildControls();
    this.update();
    new ResizeObserver(() => this.draw()).observe(this.area);
  }

  buildControls() {
    this.data.selectors.forEach((selector, number) => {
      if (selector.options.length < 2) return;
      this.controls.append(chooser(selector.label, selector.options, 0, (index) => {
        this.chosen[number] = index;
        this.log = null;
        this.update();
      }));
    });
    this.logBox = element("input", { type: "checkbox", onchange: () => {
      this.log = this.logBox.checked;
      this.read(null);
      this.draw();
    } });
    this.controls.append(element("label", { class: "check" }, this.logBox, "logarithmic y"));
  }

  /** After a choice: which lines, coloured by what, on which axis. */
  update() {
    const options = this.data.selectors.map((selector, number) => selector.options[this.chosen[number]]).filter(Boolean);
    const where = Object.assign({}, ...options.map((option) => option.where));
    this.by = options.reduce((by, option) => option.by || by, this.data.by);
    this.y = options.reduce((axis, option) => option.y || axis, this.data.y);
    this.lines = this.data.lines.filter((line) => Object.entries(where).every(([key, value]) => line.at[key] === value));
    const positive = this.lines.some((line) => line.y.some((value) => value > 0));
    this.logBox.disabled = !positive;
    this.logBox.checked = positive && (this.log === null ? this.y.log : this.log);
    this.read(null);
    this.drawLegend();
    this.draw();
    this.tabulate();
  }

  label(line) {
    return line.at[this.by];
  }

  style(label) {
    return this.data.styles[this.by][label];
  }

  paint(made, label) {
    const { colour, scale, tint } = this.style(label);
    made.style.color = colour === undefined ? along(scale) : tint ? `color-mix(in srgb, var(--c${colour}), var(--surface) ${100 * tint}%)` : `var(--c${colour})`;
    return made;
  }

  hides(line) {
    return this.hidden.has(`${this.by}\n${this.label(line)}`);
  }

  drawLegend() {
    const labels = [...new Set(this.lines.map((line) => this.label(line)))];
    const items = labels.map((label) => {
      const key = `${this.by}\n${label}`;
      const swatch = shape("svg", { class: "swatch", viewBox: "0 0 22 10", "aria-hidden": "true" },
        shape("path", { class: "line", d: "M1,5H21" }),
        shape("path", { class: "marker", d: MARKERS[this.style(label).marker], transform: "translate(11,5)" }));
      const toggle = element("button", { type: "button", "aria-pressed": String(!this.hidden.has(key)), onclick: () => {
        if (!this.hidden.delete(key)) this.hidden.add(key);
        this.legendChanged();
      } }, this.paint(swatch, label), element("span", {}, label));
      toggle.dataset.key = key;
      return element("li", {}, toggle);
    });
    if (labels.length > 5) {
      const all = element("button", { type: "button", class: "all", onclick: () => {
        const keys = labels.map((label) => `${this.by}\n${label}`);
        const none = keys.every((key) => !this.hidden.has(key));
        keys.forEach((key) => (none ? this.hidden.add(key) : this.hidden.delete(key)));
        this.legendChanged();
      } }, "all or none");
      items.push(element("li", {}, all));
    }
    this.legend.replaceChildren(...items);
  }

  /** Keeps the buttons, and with them the keyboard's focus. */
  legendChanged() {
    for (const toggle of this.legend.querySelectorAll("[aria-pressed]")) {
      toggle.setAttribute("aria-pressed", String(!this.hidden.has(toggle.dataset.key)));
    }
    this.read(null);
    this.draw();
    this.tabulate();
  }

  draw() {
    const width = this.area.clientWidth;
    if (!width) return;
    const log = this.logBox.checked;
    const shown = this.lines.filter((line) => !this.hides(line));
    const usable = (y) => y !== null && (!log || y > 0);
    const logX = this.data.x.log && shown.every((line) => line.x.every((x) => x > 0));
    const xs = [...new Set(shown.flatMap((line) => line.x))].sort((a, b) => a - b);
    const domainY = extent(shown.flatMap((line) => line.y.filter(usable)), log, 0.05);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.setAttribute("height", HEIGHT);
    this.drawn = null;
    if (!domainY) {
      const text = this.lines.length ? "every line is hidden, or has no value on this axis" : "no values to plot";
      this.svg.replaceChildren(shape("text", { x: width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, text));
      return;
    }
    const unitY = this.y.unit;
    const tickY = (value) => format(value, unitY, 3);
    const trialTicks = makeScale(domainY, [HEIGHT - 44, 24], log, SPACING_Y).ticks;
    const left = 16 + Math.max(...trialTicks.map((tick) => tickY(tick).length)) * 7;
    const x = makeScale(extent(xs, logX, logX ? 0.02 : 0.005), [left, width - 10], logX, SPACING_X, xs);
    const y = makeScale(domainY, [HEIGHT - 44, 24], log, SPACING_Y);
    const parts = [];
    for (const tick of y.ticks) {
      parts.push(shape("line", { class: "grid", x1: left, x2: width - 10, y1: y(tick), y2: y(tick) }));
      parts.push(shape("text", { class: "tick-y", x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, tickY(tick)));
    }
    for (const tick of x.ticks) {
      parts.push(shape("line", { class: "axis", x1: x(tick), x2: x(tick), y1: HEIGHT - 44, y2: HEIGHT - 39 }));
      parts.push(shape("text", { class: "tick-x", x: x(tick), y: HEIGHT - 24, "text-anchor": "middle" }, format(tick, this.data.x.unit, 3)));
    }
    parts.push(shape("line", { class: "axis", x1: left, x2: width - 10, y1: HEIGHT - 44, y2: HEIGHT - 44 }));
    parts.push(shape("text", { x: width - 10, y: HEIGHT - 4, "text-anchor": "end" }, this.data.x.label));
    parts.push(shape("text", { x: 0, y: 12 }, this.y.label));
    for (const line of shown) parts.push(...this.drawLine(line, x, y, usable, shown.length));
    this.cursor = shape("g", { class: "cursor" });
    this.svg.replaceChildren(...parts, this.cursor);
    this.drawn = { shown, usable, x, y, xs, width };
    if (this.at !== null) this.read(this.at);
  }

  drawLine(line, x, y, usable, count) {
    let path = "";
    let broken = true;
    const points = [];
    line.x.forEach((value, i) => {
      if (!usable(line.y[i])) {
        broken = true;
        return;
      }
      const point = [x(value).toFixed(1), y(line.y[i]).toFixed(1)];
      path += `${broken ? "M" : "L"}${point}`;
      points.push(point);
      broken = false;
    });
    const label = this.label(line);
    const kind = `line${line.dashed ? " dashed" : ""}${count > 12 ? " many" : ""}`;
    const drawn = this.paint(shape("path", { class: kind, d: path, "data-label": label, "data-name": line.name }), label);
    const every = points.length <= 16 ? 1 : Math.ceil(points.length / 6);
    const marks = points.filter((_, i) => i % every === Math.floor(every / 2)).map(([px, py]) =>
      this.paint(shape("path", { class: "marker", d: MARKERS[this.style(label).marker], transform: `translate(${px},${py})` }), label));
    return [drawn, ...marks];
  }

  point(event) {
    if (!this.drawn) return;
    const across = event.clientX - this.svg.getBoundingClientRect().left;
    const { xs, x } = this.drawn;
    this.read(xs.reduce((best, value) => (Math.abs(x(value) - across) < Math.abs(x(best) - across) ? value : best), xs[0]));
  }

  key(event) {
    if (!this.drawn) return;
    const { xs } = this.drawn;
    const now = this.at === null ? -1 : xs.indexOf(this.at);
    const next = { ArrowRight: Math.min(xs.length - 1, now + 1), ArrowLeft: Math.max(0, now - 1), Home: 0, End: xs.length - 1 }[event.key];
    if (event.key === "Escape") this.read(null);
    if (next === undefined) return;
    event.preventDefault();
    this.read(xs[next]);
  }

  /** Shows the values at x, of each line its nearest point when that is close. */
  read(at) {
    this.at = at;
    this.reading.hidden = true;
    if (this.cursor) this.cursor.replaceChildren();
    if (at === null || !this.drawn) return;
    const { shown, usable, x, y, width } = this.drawn;
    const rows = [];
    for (const line of shown) {
      let best = -1;
      line.x.forEach((value, i) => {
        if (usable(line.y[i]) && (best < 0 || Math.abs(x(value) - x(at)) < Math.abs(x(line.x[best]) - x(at)))) best = i;
      });
      if (best >= 0 && Math.abs(x(line.x[best]) - x(at)) <= 0.03 * width) rows.push({ line, x: line.x[best], y: line.y[best] });
    }
    if (!rows.length) return;
    rows.sort((a, b) => b.y - a.y);
    const heading = `${this.data.x.label} ${format(at, this.data.x.unit, 6)}`;
    const items = rows.slice(0, MOST_READ).map((row) => {
      const label = this.label(row.line);
      const swatch = shape("svg", { class: "swatch", viewBox: "0 0 22 10", "aria-hidden": "true" },
        shape("path", { class: `line${row.line.dashed ? " dashed" : ""}`, d: "M1,5H21" }));
      const beside = [row.line.name, row.x === at ? "" : `at ${format(row.x, this.data.x.unit, 6)}`].filter(Boolean).join(", ");
      return element("li", {}, this.paint(swatch, label),
        element("span", {}, label, beside ? element("span", { class: "quiet" }, ` ${beside}`) : null),
        element("b", {}, format(row.y, this.y.unit)));
    });
    const more = rows.length > MOST_READ ? element("p", {}, `and ${rows.length - MOST_READ} more`) : null;
    this.reading.replaceChildren(...[element("p", {}, heading), element("ul", {}, ...items), more].filter(Boolean));
    this.reading.hidden = false;
    const size = this.reading.offsetWidth;
    const left = x(at) + 14 + size <= width ? x(at) + 14 : Math.max(0, x(at) - 14 - size);
    const top = width < NARROW ? HEIGHT : 24; // on a phone it would hide the lines
    this.reading.style.transform = `translate(${left}px, ${top}px)`;
    this.cursor.append(shape("line", { class: "guide", x1: x(at), x2: x(at), y1: 24, y2: HEIGHT - 44 }));
    for (const row of rows) {
      this.cursor.append(this.paint(shape("circle", { class: "point", cx: x(row.x), cy: y(row.y), r: 4 }), this.label(row.line)));
    }
  }

  /** The shown lines as a table, made when it is opened. */
  tabulate() {
    if (!this.values.open) return;
    const shown = this.lines.filter((line) => !this.hides(line));
    const xs = [...new Set(shown.flatMap((line) => line.x))].sort((a, b) => a - b);
    const known = shown.map((line) => new Map(line.x.map((x, i) => [x, line.y[i]])));
    const heads = [this.data.x.label, ...shown.map((line) => [this.label(line), line.name].filter(Boolean).join(", "))];
    const table = element("table", {},
      element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col", class: "number" }, head)))),
      element("tbody", {}, ...xs.map((x) => element("tr", {},
        element("th", { scope: "row", class: "number" }, format(x, this.data.x.unit, 6)),
        ...known.map((values) => element("td", { class: "number" }, format(values.has(x) ? values.get(x) : null, this.y.unit)))))));
    this.values.querySelector(".scroll")?.remove();
    this.values.append(element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Values" }, table));
  }
}

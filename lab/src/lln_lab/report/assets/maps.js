"use strict";
// Attention maps of two attentions side by side, for one layer and head. A cell is read on both at once.

const HEAT = {
  light: [[255, 255, 255], [120, 175, 214], [28, 92, 158], [16, 22, 66]],
  dark: [[20, 22, 28], [40, 78, 138], [96, 168, 228], [250, 240, 205]],
};
// Where the logarithmic colours begin, as a share of the largest value: at the smallest one, but within these.
const FLOOR = 1e-4;
const CEILING = 1e-1;

class AttentionMaps {
  constructor(figure, data) {
    this.data = data;
    const unique = (key) => [...new Set(data.maps.map((map) => map[key]))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const labels = [...new Set(data.maps.map((map) => map.label))];
    this.choice = { layer: unique("layer"), head: unique("head"), left: labels, right: labels };
    this.state = { layer: 0, head: 0, left: 0, right: Math.min(1, labels.length - 1), log: true };
    this.at = null;
    const select = (name, label) => chooser(label, this.choice[name].map((value) => ({ label: value })), this.state[name], (index) => {
      this.state[name] = index;
      this.draw();
    });
    const logBox = element("input", { type: "checkbox", checked: true, onchange: () => {
      this.state.log = logBox.checked;
      this.draw();
    } });
    const controls = [select("layer", "Layer"), select("head", "Head")];
    if (labels.length > 2) controls.push(select("left", "Left"), select("right", "Right"));
    controls.push(element("label", { class: "check" }, logBox, "logarithmic colours"));
    this.panels = (labels.length > 1 ? ["left", "right"] : ["left"]).map((side) => this.panel(side));
    this.low = element("span");
    this.high = element("span");
    this.bar = element("canvas", { width: 128, height: 1, "aria-hidden": "true" });
    this.told = element("p", { class: "told", role: "status" });
    figure.append(
      element("div", { class: "controls" }, ...controls),
      element("div", { class: "pair" }, ...this.panels.map((panel) => panel.box)),
      element("div", { class: "key" }, this.low, this.bar, this.high),
      this.told,
    );
    this.draw();
  }

  panel(side) {
    const title = element("p");
    const canvas = element("canvas", {
      tabindex: "0",
      role: "img",
      onpointermove: (event) => this.point(event, side),
      onpointerdown: (event) => this.point(event, side),
      onpointerleave: () => this.read(null),
      onblur: () => this.read(null),
      onkeydown: (event) => this.key(event, side),
    });
    const cell = element("div", { class: "cell", hidden: true });
    return { side, title, canvas, cell, box: element("div", { class: "panel" }, title, element("div", { class: "frame" }, canvas, cell)) };
  }

  find(side) {
    const wanted = { layer: this.choice.layer[this.state.layer], head: this.choice.head[this.state.head], label: this.choice[side][this.state[side]] };
    const map = this.data.maps.find((one) => Object.entries(wanted).every(([key, value]) => one[key] === value));
    if (map && !map.numbers) map.numbers = unpack(map.values);
    return { map, label: wanted.label };
  }

  draw() {
    this.at = null;
    const found = this.panels.map((panel) => this.find(panel.side));
    // One scale for both, or they could not be compared.
    const positive = found.flatMap(({ map }) => (map ? [...map.numbers.filter((value) => value > 0)] : []));
    const largest = positive.reduce((most, value) => Math.max(most, value), 0) || 1;
    const smallest = positive.reduce((least, value) => Math.min(least, value), largest);
    const floor = Math.min(CEILING, Math.max(FLOOR, smallest / largest));
    const paint = this.state.log
      ? (value) => (value > 0 ? Math.max(0, 1 - Math.log(value / largest) / Math.log(floor)) : 0)
      : (value) => Math.max(0, value / largest);
    const stops = HEAT[isDark() ? "dark" : "light"];
    this.panels.forEach((panel, i) => {
      const { map, label } = found[i];
      panel.map = map;
      panel.title.textContent = map ? label : `${label}: no map of this head`;
      panel.canvas.setAttribute("aria-label", `Attention map of ${label}, layer ${this.choice.layer[this.state.layer]}, head ${this.choice.head[this.state.head]}: arrow keys read cells`);
      fill(panel.canvas, map ? map.columns : 1, map ? map.rows : 1, (at) => colourAt(stops, map ? paint(map.numbers[at]) : 0));
    });
    fill(this.bar, 128, 1, (at) => colourAt(stops, at / 127));
    this.low.textContent = this.state.log ? `≤ ${format(largest * floor, "", 3)}` : "0";
    this.high.textContent = format(largest, "", 3);
    this.text = found.map(({ map }) => map && map.text).find(Boolean) || "";
    this.read(null);
  }

  point(event, side) {
    const { canvas, map } = this.panels.find((panel) => panel.side === side);
    if (!map) return;
    const box = canvas.getBoundingClientRect();
    const within = (share, size) => Math.min(size - 1, Math.max(0, Math.floor(share * size)));
    this.read([within((event.clientY - box.top) / box.height, map.rows), within((event.clientX - box.left) / box.width, map.columns)]);
  }

  key(event, side) {
    const { map } = this.panels.find((panel) => panel.side === side);
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Escape") this.read(null);
    if (!move || !map) return;
    event.preventDefault();
    const [row, column] = this.at || [0, 0];
    const within = (value, size) => Math.min(size - 1, Math.max(0, value));
    this.read(this.at ? [within(row + move[0], map.rows), within(column + move[1], map.columns)] : [0, 0]);
  }

  read(at) {
    this.at = at;
    for (const { cell, map } of this.panels) {
      const inside = at && map && at[0] < map.rows && at[1] < map.columns;
      cell.hidden = !inside;
      if (!inside) continue;
      cell.style.top = `${(100 * at[0]) / map.rows}%`;
      cell.style.left = `${(100 * at[1]) / map.columns}%`;
      cell.style.height = `${100 / map.rows}%`;
      cell.style.width = `${100 / map.columns}%`;
    }
    if (!at) {
      this.told.textContent = this.text ? `Input: ${this.text.slice(0, 300)}` : "Point at a cell to read it.";
      return;
    }
    const tokens = this.panels.map(({ map }) => map && map.tokens).find(Boolean);
    const name = (what, position) => `${what} ${position}${tokens && tokens[position] !== undefined ? ` “${tokens[position]}”` : ""}`;
    const values = this.panels.filter(({ cell }) => !cell.hidden).map(({ side, map }) =>
      `${this.choice[side][this.state[side]]} ${format(map.numbers[at[0] * map.columns + at[1]])}`);
    this.told.textContent = `${name("query", at[0])} to ${name("key", at[1])}: ${values.join(", ")}`;
  }
}

function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
}

function fill(canvas, width, height, colour) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let at = 0; at < width * height; at += 1) image.data.set([...colour(at), 255], 4 * at);
  context.putImageData(image, 0, 0);
}

function colourAt(stops, share) {
  const position = Math.min(1, Math.max(0, share || 0)) * (stops.length - 1);
  const before = Math.min(stops.length - 2, Math.floor(position));
  return stops[before].map((from, i) => from + (stops[before + 1][i] - from) * (position - before));
}

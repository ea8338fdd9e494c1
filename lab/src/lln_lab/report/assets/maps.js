"use strict";
// Attention maps of two attentions side by side and their ratio, for one layer and head. A cell is read on all at once.

const HEAT = {
  light: [[255, 255, 255], [120, 175, 214], [28, 92, 158], [16, 22, 66]],
  dark: [[20, 22, 28], [40, 78, 138], [96, 168, 228], [250, 240, 205]],
};
const DIVERGING = {
  light: [[11, 107, 176], [150, 195, 226], [250, 250, 248], [244, 178, 125], [178, 66, 0]],
  dark: [[95, 178, 245], [44, 92, 140], [27, 30, 36], [140, 76, 34], [255, 147, 80]],
};
// Where the logarithmic colours begin, as a share of the largest value: at the smallest one, but within these.
const FLOOR = 1e-4;
const CEILING = 1e-1;
const OCTAVES = 4; // the ratio's colours end at 16 times more or less
const MOST_TICKS = { top: 6, left: 4 };
const FINEST_BLOCK = 3; // cells: smaller blocks would be a grid and no map

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
    this.panels = (labels.length > 1 ? ["left", "right", "ratio"] : ["left"]).map((side) => this.panel(side));
    this.low = element("span");
    this.high = element("span");
    this.bar = element("canvas", { width: 128, height: 1, "aria-hidden": "true" });
    this.ratioBar = element("canvas", { width: 128, height: 1, "aria-hidden": "true" });
    this.told = element("p", { class: "told", role: "status" });
    const ratioKey = labels.length > 1
      ? element("div", { class: "key" }, element("span", {}, `ratio 1/${2 ** OCTAVES}`), this.ratioBar, element("span", {}, `${2 ** OCTAVES} times`))
      : null;
    figure.append(
      element("div", { class: "controls" }, ...controls),
      element("div", { class: "pair" }, ...this.panels.map((panel) => panel.box)),
      element("div", { class: "keys" }, element("div", { class: "key" }, this.low, this.bar, this.high), ratioKey),
      this.told,
    );
    this.draw();
  }

  panel(side) {
    const title = element("p", { class: "map-title" });
    const facts = element("p", { class: "quiet facts" });
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
    const blocks = shape("svg", { class: "blocks", viewBox: "0 0 1 1", preserveAspectRatio: "none", "aria-hidden": "true" });
    const queries = element("div", { class: "ticks queries", "aria-hidden": "true" });
    const keys = element("div", { class: "ticks keys-below", "aria-hidden": "true" });
    const box = element("div", { class: "panel" }, title, element("div", { class: "frame" }, queries, canvas, blocks, cell, keys), facts);
    return { side, title, facts, canvas, cell, blocks, queries, keys, box };
  }

  find(side) {
    const wanted = { layer: this.choice.layer[this.state.layer], head: this.choice.head[this.state.head], label: this.choice[side][this.state[side]] };
    const map = this.data.maps.find((one) => Object.entries(wanted).every(([key, value]) => one[key] === value));
    if (map && !map.numbers) map.numbers = unpack(map.values);
    return { map, label: wanted.label };
  }

  /** right / left, cell by cell, as a map of its own. */
  ratio(left, right) {
    if (!left.map || !right.map || left.map.numbers.length !== right.map.numbers.length) return { map: undefined, label: "ratio" };
    const numbers = right.map.numbers.map((value, i) => (value > 0 && left.map.numbers[i] > 0 ? value / left.map.numbers[i] : NaN));
    return { map: { ...right.map, numbers, entropy: null, gap: null }, label: `${right.label} / ${left.label}` };
  }

  draw() {
    this.at = null;
    const pair = this.panels.filter((panel) => panel.side !== "ratio").map((panel) => this.find(panel.side));
    const found = this.panels.length > 2 ? [...pair, this.ratio(...pair)] : pair;
    // One scale for both, or they could not be compared.
    const positive = pair.flatMap(({ map }) => (map ? [...map.numbers.filter((value) => value > 0)] : []));
    const largest = positive.reduce((most, value) => Math.max(most, value), 0) || 1;
    const smallest = positive.reduce((least, value) => Math.min(least, value), largest);
    const floor = Math.min(CEILING, Math.max(FLOOR, smallest / largest));
    const paint = this.state.log
      ? (value) => (value > 0 ? Math.max(0, 1 - Math.log(value / largest) / Math.log(floor)) : 0)
      : (value) => Math.max(0, value / largest);
    const theme = isDark() ? "dark" : "light";
    const times = (value) => (value > 0 ? 0.5 + Math.log2(value) / (2 * OCTAVES) : 0.5);
    this.panels.forEach((panel, i) => {
      const { map, label } = found[i];
      const isRatio = panel.side === "ratio";
      const share = isRatio ? times : paint;
      const stops = isRatio ? DIVERGING[theme] : HEAT[theme];
      panel.map = map;
      panel.label = label;
      panel.title.textContent = map ? label : `${label}: no map of this head`;
      panel.facts.textContent = map ? (isRatio ? "how many times more weight" : this.facts(map)) : "";
      panel.canvas.setAttribute("aria-label", `Attention map of ${label}, layer ${this.choice.layer[this.state.layer]}, head ${this.choice.head[this.state.head]}: arrow keys read cells`);
      fill(panel.canvas, map ? map.columns : 1, map ? map.rows : 1, (at) => colourAt(stops, map ? share(map.numbers[at]) : 0));
      this.drawBlocks(panel);
      this.drawTicks(panel);
    });
    fill(this.bar, 128, 1, (at) => colourAt(HEAT[theme], at / 127));
    fill(this.ratioBar, 128, 1, (at) => colourAt(DIVERGING[theme], at / 127));
    this.low.textContent = this.state.log ? `≤ ${format(largest * floor, "", 3)}` : "0";
    this.high.textContent = format(largest, "", 3);
    this.read(null);
  }

  facts(map) {
    const sums = [];
    for (let row = 0; row < map.rows; row += 1) sums.push(map.numbers.subarray(row * map.columns, (row + 1) * map.columns).reduce((sum, value) => sum + value, 0));
    const mean = sums.reduce((sum, value) => sum + value, 0) / sums.length;
    const parts = [`rows sum to ${format(Number(mean.toFixed(3)))}`];
    if (map.entropy !== null) parts.unshift(`entropy ${format(map.entropy, "", 3)} bits`);
    if (map.gap !== null) parts.splice(1, 0, `gap ${format(map.gap, "", 3)}`);
    return parts.join(" · ");
  }

  /** The blocks in which LLN+Diag looks by softmax. */
  drawBlocks(panel) {
    const { map } = panel;
    const cells = map && map.block ? map.block / this.data.cell : 0;
    panel.blocks.replaceChildren();
    if (!map || cells < FINEST_BLOCK) return;
    for (let at = 0; at < map.rows; at += cells) {
      const size = Math.min(cells, map.rows - at) / map.rows;
      panel.blocks.append(shape("rect", { x: at / map.columns, y: at / map.rows, width: size, height: size }));
    }
  }

  drawTicks(panel) {
    const draw = (place, cells, side) => {
      place.replaceChildren();
      const every = Math.max(1, Math.ceil(cells / MOST_TICKS[side]));
      for (let at = 0; at < cells; at += every) {
        const tick = element("span", {}, this.name(at, 9));
        tick.style[side] = `${(100 * (at + 0.5)) / cells}%`;
        place.append(tick);
      }
    };
    draw(panel.queries, panel.map ? panel.map.rows : 0, "top");
    draw(panel.keys, panel.map ? panel.map.columns : 0, "left");
  }

  /** The token at a cell's first position, or the position where tokens are not known. */
  name(cell, most) {
    const { tokens } = this.data;
    const position = cell * this.data.cell;
    const text = tokens ? tokens[position].trim() || "␣" : String(position);
    return text.length > most ? `${text.slice(0, most - 1)}…` : text;
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
      this.told.textContent = this.data.text ? `Input: ${this.data.text.slice(0, 300)}` : "Point at a cell to read it.";
      return;
    }
    const values = this.panels.filter(({ cell }) => !cell.hidden).map(({ label, map }) =>
      `${label} ${format(map.numbers[at[0] * map.columns + at[1]])}`);
    this.told.textContent = `${this.span("query", at[0])} to ${this.span("key", at[1])}: ${values.join(", ")}`;
  }

  /** What a cell stands for along one axis: a token, or the tokens from and to. */
  span(what, cell) {
    const { tokens, length } = this.data;
    const first = cell * this.data.cell;
    const last = Math.min(length, first + this.data.cell) - 1;
    const quoted = (at) => (tokens ? ` “${tokens[at]}”` : "");
    return first === last ? `${what} ${first}${quoted(first)}` : `${what === "query" ? "queries" : "keys"} ${first}${quoted(first)} to ${last}${quoted(last)}`;
  }
}

/** Two bytes a value, as lln_lab/report/codes.py writes them. */
function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 2 }, (_, i) => {
    const code = view.getUint16(2 * i, true);
    return code === 0 ? 0 : code === 65535 ? NaN : 2 ** (((code - 1) / 65533 - 1) * 64);
  });
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

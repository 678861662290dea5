// One plot on a canvas: lines with bands and gaps, linear or logarithmic, values under the pointer, zoom by dragging.
// Nothing of a library: see docs/decisions/030-plots-of-the-page.md.
import {element, number, span} from "./table.js";

// Okabe and Ito's colours, for bright and dark paper; beyond eight, lines are also dashed.
const HUES = {bright: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#2b9fd9", "#1b2430", "#7b4ba0"],
  dark: ["#56b4e9", "#ff8a3d", "#2bc79b", "#e79ac6", "#f0c43e", "#9ecbff", "#e6e9ef", "#c39be0"]};
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
export const isDark = () => document.documentElement.dataset.theme === "dark";
export const hue = at => HUES[isDark() ? "dark" : "bright"][at % 8];
export const dash = at => DASHES[Math.floor(at / 8) % 4];
export const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Round places for ticks between two values; of a logarithmic axis the powers of ten, and 2 and 5 where these are few.
export function ticks(low, high, count, isLog) {
  if (isLog) {
    const found = [], from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high)), few = to - from <= 3;
    const every = Math.max(1, Math.ceil((to - from) / count));
    for (let power = from; power <= to; power += every) for (const part of few ? [1, 2, 5] : [1]) found.push(part * 10 ** power);
    const inside = found.filter(value => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9));
    if (inside.length > 1) return inside;
  }
  const raw = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw)), unit = [1, 2, 2.5, 5, 10].find(one => one * power >= raw * 0.999) * power;
  const found = [];
  for (let at = Math.ceil(low / unit - 1e-9); at * unit <= high + unit * 1e-9 && found.length < 50; at++) found.push(Number((at * unit).toPrecision(12)));
  return found;
}

// Of wall time: whole minutes, hours or days of the local clock.
function timeTicks(low, high, count) {
  const unit = [60, 300, 900, 3600, 10800, 21600, 43200, 86400, 172800, 604800].find(one => (high - low) / one <= count) || 2592000;
  const shift = new Date(low * 1000).getTimezoneOffset() * 60, found = [];
  for (let at = Math.ceil((low - shift) / unit) * unit + shift; at <= high; at += unit) found.push(at);
  return found.length ? found : [low];
}

function spanTicks(low, high, count) {
  const unit = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800].find(one => (high - low) / one <= count) || 604800, found = [];
  for (let at = Math.ceil(low / unit) * unit; at <= high; at += unit) found.push(at);
  return found;
}

export const AXIS = {
  step: {title: "step", text: value => value.toLocaleString(), tick: value => Math.abs(value) >= 1e4 ? `${number(value / 1e3)}k` : number(value)},
  epoch: {title: "epoch", text: value => number(value), tick: value => number(value)},
  hours: {title: "hours since start", text: value => span(value * 3600), tick: value => number(value)},
  time: {title: "wall time", ticks: timeTicks, text: value => new Date(value * 1000).toLocaleString(),
    tick: (value, range) => new Date(value * 1000).toLocaleString([], range > 86400 ? {month: "short", day: "numeric", hour: "2-digit"} : {hour: "2-digit", minute: "2-digit"})},
  seconds: {title: "time", ticks: spanTicks, text: span, tick: span},
};

// As TensorBoard does: an exponential mean, corrected at its beginning; gaps stay gaps.
export function smoothed(values, weight) {
  if (!weight) return values;
  let mean = 0, sum = 0;
  return values.map(value => {
    if (value === null) return null;
    mean = mean * weight + (1 - weight) * value; sum = sum * weight + (1 - weight);
    return mean / sum;
  });
}

const PAD = {left: 52, right: 10, top: 8, bottom: 22};

export class Plot {
  // hooks: zoom([low, high] or null), hover(x or null), pick(id)
  constructor(title, hooks = {}) {
    this.hooks = hooks; this.series = []; this.range = null; this.options = {axis: "step", log: false, smooth: 0};
    this.figure = element("figure", "plot");
    this.caption = element("figcaption"); this.note = element("span", "dim");
    this.caption.append(element("b", "", title), this.note);
    const box = element("div", "canvas");
    this.canvas = element("canvas"); this.over = element("canvas", "over"); this.tip = element("div", "tip"); this.tip.hidden = true;
    this.over.tabIndex = 0; this.over.setAttribute("role", "img");
    this.title = title;
    box.append(this.canvas, this.over, this.tip); this.figure.append(this.caption, box);
    this.box = box;
    new ResizeObserver(() => this.draw()).observe(box);
    this.listen();
  }

  show(series, options, range = null) {
    this.options = {...this.options, ...options}; this.range = range;
    this.series = series.map(one => ({...one, line: smoothed(one.y, this.options.smooth)}));
    this.draw();
  }

  listen() {
    const at = event => event.clientX - this.over.getBoundingClientRect().left;
    let begin = null;
    this.over.addEventListener("pointerdown", event => { begin = at(event); this.over.setPointerCapture(event.pointerId); });
    this.over.addEventListener("pointermove", event => {
      if (begin !== null && Math.abs(at(event) - begin) > 4) this.mark(begin, at(event));
      else this.point(this.valueAt(at(event)), event.clientY - this.over.getBoundingClientRect().top, true);
    });
    this.over.addEventListener("pointerup", event => {
      const end = at(event), wide = begin !== null && Math.abs(end - begin) > 8;
      if (wide && this.hooks.zoom) this.hooks.zoom([this.valueAt(Math.min(begin, end)), this.valueAt(Math.max(begin, end))]);
      else if (begin !== null && this.hooks.pick && this.nearest) this.hooks.pick(this.nearest);
      begin = null;
    });
    this.over.addEventListener("pointerleave", () => { begin = null; this.point(null); if (this.hooks.hover) this.hooks.hover(null); });
    this.over.addEventListener("dblclick", () => this.hooks.zoom && this.hooks.zoom(null));
    this.over.addEventListener("blur", () => this.point(null));
    this.over.addEventListener("keydown", event => this.key(event));
  }

  // Arrows move along the curve, + and - zoom around that place, 0 shows all.
  key(event) {
    if (!this.x || !["ArrowLeft", "ArrowRight", "+", "-", "0"].includes(event.key)) return;
    event.preventDefault(); event.stopPropagation();
    const [low, high] = this.x, wide = high - low, place = this.cursor ?? (low + high) / 2;
    if (event.key.startsWith("Arrow")) this.point(Math.max(low, Math.min(high, place + (event.key === "ArrowLeft" ? -wide : wide) / 50)), null, true);
    else if (this.hooks.zoom) this.hooks.zoom(event.key === "0" ? null : event.key === "+" ? [place - wide / 4, place + wide / 4] : [low - wide / 2, high + wide / 2]);
  }

  place(value, [low, high], isLog) { return isLog ? (Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low)) : (value - low) / (high - low || 1); }
  px(value) { return PAD.left + this.place(value, this.x, false) * (this.width - PAD.left - PAD.right); }
  py(value) { return this.height - PAD.bottom - this.place(value, this.y, this.options.log) * (this.height - PAD.top - PAD.bottom); }
  valueAt(px) { const [low, high] = this.x || [0, 1]; return low + (high - low) * Math.max(0, Math.min(1, (px - PAD.left) / (this.width - PAD.left - PAD.right))); }

  // What is in view: x as asked for or all, y as far as lines and bands go there.
  bounds() {
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity, hidden = 0;
    this.series.forEach(one => one.x.forEach(x => { if (x < x0) x0 = x; if (x > x1) x1 = x; }));
    if (!(x0 <= x1)) return false;
    if (this.range) [x0, x1] = [Math.max(x0, this.range[0]), Math.min(x1, this.range[1])];
    if (!(x0 < x1)) [x0, x1] = [x0 - 0.5, x0 + 0.5];
    const take = value => { if (this.options.log && value <= 0) { hidden++; return; } if (value < y0) y0 = value; if (value > y1) y1 = value; };
    this.series.forEach(one => one.x.forEach((x, at) => {
      if (x < x0 || x > x1 || one.line[at] === null) return;
      take(one.line[at]);
      if (one.std && one.std[at] !== null && !this.options.log) { take(one.line[at] - one.std[at]); take(one.line[at] + one.std[at]); }
    }));
    if (!(y0 <= y1)) return false;
    if (y0 === y1) [y0, y1] = this.options.log ? [y0 / 2, y1 * 2] : [y0 - Math.abs(y0) * 0.05 - 1e-9, y1 + Math.abs(y1) * 0.05 + 1e-9];
    const room = (y1 - y0) * 0.04;
    this.x = [x0, x1]; this.y = this.options.log ? [y0 * 0.95, y1 * 1.05] : [y0 - room, y1 + room]; this.hidden = hidden;
    return true;
  }

  draw() {
    const width = this.box.clientWidth, height = this.box.clientHeight, scale = devicePixelRatio || 1;
    if (!width || !height) return;
    this.width = width; this.height = height;
    for (const canvas of [this.canvas, this.over]) { canvas.width = width * scale; canvas.height = height * scale; canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0); }
    const pen = this.canvas.getContext("2d");
    pen.clearRect(0, 0, width, height);
    if (!this.bounds()) { this.x = null; pen.fillStyle = css("--soft"); pen.font = "12px system-ui"; pen.fillText("no values", PAD.left, height / 2); this.tell(); return; }
    this.axes(pen);
    pen.save();
    pen.beginPath(); pen.rect(PAD.left, PAD.top - 2, width - PAD.left - PAD.right, height - PAD.top - PAD.bottom + 4); pen.clip();
    this.series.forEach(one => this.band(pen, one));
    if (this.options.smooth) this.series.forEach(one => this.line(pen, one, one.y, 0.25));
    this.series.forEach(one => this.line(pen, one, one.line, 1));
    pen.restore();
    this.tell();
  }

  axes(pen) {
    const axis = AXIS[this.options.axis] || AXIS.step, wide = this.width, high = this.height;
    pen.font = "11px system-ui"; pen.fillStyle = css("--soft"); pen.strokeStyle = css("--line"); pen.lineWidth = 1;
    pen.textAlign = "right"; pen.textBaseline = "middle";
    ticks(...this.y, Math.max(2, Math.floor(high / 36)), this.options.log).forEach(value => {
      const at = Math.round(this.py(value)) + 0.5;
      pen.beginPath(); pen.moveTo(PAD.left, at); pen.lineTo(wide - PAD.right, at); pen.stroke();
      pen.fillText(number(value), PAD.left - 6, at);
    });
    pen.textBaseline = "alphabetic";
    const places = axis.ticks ? axis.ticks(...this.x, Math.max(2, Math.floor(wide / 90))) : ticks(...this.x, Math.max(2, Math.floor(wide / 80)), false);
    places.forEach(value => {
      const text = axis.tick(value, this.x[1] - this.x[0]), half = pen.measureText(text).width / 2;
      pen.textAlign = "center";
      pen.fillText(text, Math.max(half + 2, Math.min(wide - half - 2, this.px(value))), high - 6);
    });
  }

  band(pen, one) {
    if (!one.std) return;
    pen.fillStyle = hue(one.colour); pen.globalAlpha = 0.16;
    const floor = this.options.log ? this.y[0] : -Infinity, points = one.x.map((x, at) => at).filter(at => one.line[at] !== null && one.std[at] !== null);
    if (points.length > 1) {
      pen.beginPath();
      points.forEach((at, order) => pen[order ? "lineTo" : "moveTo"](this.px(one.x[at]), this.py(Math.max(floor, one.line[at] + one.std[at]))));
      points.reverse().forEach(at => pen.lineTo(this.px(one.x[at]), this.py(Math.max(floor, one.line[at] - one.std[at]))));
      pen.closePath(); pen.fill();
    }
    pen.globalAlpha = 1;
  }

  line(pen, one, values, alpha) {
    const many = this.series.length > 32, isLog = this.options.log, [x0, x1] = this.x, low = isLog ? Math.log(this.y[0]) : this.y[0], high = isLog ? Math.log(this.y[1]) : this.y[1];
    const wide = (this.width - PAD.left - PAD.right) / (x1 - x0 || 1), tall = (this.height - PAD.top - PAD.bottom) / (high - low || 1), floor = this.height - PAD.bottom;
    pen.strokeStyle = hue(one.colour); pen.globalAlpha = alpha; pen.lineWidth = many ? 1 : 1.6; pen.lineJoin = many ? "bevel" : "round";
    pen.setLineDash(many ? [] : dash(one.colour)); // dashes of hundreds of lines are slow, and nobody can tell them apart
    pen.beginPath();
    let before = false;
    for (let at = 0; at < one.x.length; at++) {
      const value = values[at], isDrawn = value !== null && !(isLog && value <= 0);
      if (isDrawn) {
        const px = PAD.left + (one.x[at] - x0) * wide, py = floor - ((isLog ? Math.log(value) : value) - low) * tall;
        if (before) pen.lineTo(px, py); else pen.moveTo(px, py);
        // A value alone between gaps is a dot.
        if (!before && (at === one.x.length - 1 || values[at + 1] === null)) { pen.moveTo(px + 2, py); pen.arc(px, py, 2, 0, 7); }
      }
      before = isDrawn;
    }
    pen.stroke(); pen.globalAlpha = 1; pen.setLineDash([]);
  }

  mark(from, to) {
    const pen = this.over.getContext("2d");
    this.tip.hidden = true;
    pen.clearRect(0, 0, this.width, this.height); pen.fillStyle = css("--accent"); pen.globalAlpha = 0.18;
    pen.fillRect(Math.min(from, to), PAD.top, Math.abs(to - from), this.height - PAD.top - PAD.bottom); pen.globalAlpha = 1;
  }

  // The values at an x; told to the other plots of the page, which show theirs.
  point(x, y = null, isSource = false) {
    const pen = this.over.getContext("2d");
    pen.clearRect(0, 0, this.width, this.height);
    this.cursor = x; this.nearest = null;
    if (x === null || !this.x || x < this.x[0] || x > this.x[1]) { this.tip.hidden = true; return; }
    if (isSource && this.hooks.hover) this.hooks.hover(x);
    pen.strokeStyle = css("--soft"); pen.setLineDash([3, 3]);
    pen.beginPath(); pen.moveTo(this.px(x), PAD.top); pen.lineTo(this.px(x), this.height - PAD.bottom); pen.stroke(); pen.setLineDash([]);
    const reach = (this.x[1] - this.x[0]) * 0.05, found = [];
    this.series.forEach(one => {
      let best = -1;
      one.x.forEach((value, at) => { if (one.line[at] !== null && (best < 0 || Math.abs(value - x) < Math.abs(one.x[best] - x))) best = at; });
      if (best >= 0 && Math.abs(one.x[best] - x) <= reach && !(this.options.log && one.line[best] <= 0)) found.push({one, at: best, py: this.py(one.line[best])});
    });
    if (y !== null) found.sort((a, b) => Math.abs(a.py - y) - Math.abs(b.py - y));
    if (found.length && y !== null) this.nearest = found[0].one.id;
    const shown = found.slice(0, 9).sort((a, b) => a.py - b.py);
    shown.forEach(({one, at, py}) => { pen.fillStyle = hue(one.colour); pen.beginPath(); pen.arc(this.px(one.x[at]), py, 3.5, 0, 7); pen.fill(); });
    const axis = AXIS[this.options.axis] || AXIS.step, lines = shown.map(({one, at}) => {
      const line = element("div", one.id === this.nearest ? "near" : ""), dot = element("i");
      dot.style.background = hue(one.colour);
      const spread = one.std && one.std[at] !== null ? ` ± ${number(Number(one.std[at].toPrecision(2)))}` : "", seeds = one.n ? ` (n=${one.n[at]})` : "";
      line.append(dot, element("b", "", `${number(one.y[at])}${spread}`), element("span", "", ` ${one.name}${seeds}`));
      return line;
    });
    if (!isSource || !lines.length) { this.tip.hidden = true; return; }
    const more = found.length > shown.length ? [element("div", "dim", `${found.length - shown.length} more`)] : [];
    this.tip.replaceChildren(element("div", "dim", `${axis.title} ${axis.text(found[0].one.x[found[0].at])}`), ...lines, ...more);
    this.tip.hidden = false;
    // Below the plot, or above it where the window ends: the curves stay in sight.
    const wide = this.tip.offsetWidth, high = this.tip.offsetHeight, below = this.box.getBoundingClientRect().bottom + high + 8 < innerHeight;
    this.tip.style.left = `${Math.max(0, Math.min(this.width - wide, this.px(x) - wide / 2))}px`;
    this.tip.style.top = below ? `${this.height + 4}px` : `${-high - 4}px`;
  }

  // In words, for those who do not see it.
  tell() {
    const lasts = this.series.slice(0, 20).map(one => { const last = [...one.y].reverse().find(value => value !== null); return `${one.name}: ${last === undefined ? "no value" : number(last)}`; });
    this.over.setAttribute("aria-label", `${this.title} over ${(AXIS[this.options.axis] || AXIS.step).title}, ${this.series.length} ${this.series.length === 1 ? "curve" : "curves"}; last values: ${lasts.join(", ")}`);
    const most = Math.max(1, ...this.series.map(one => one.stretch || 1)), words = [];
    if (this.x && this.hidden) words.push(`${this.hidden} values of 0 or less are not on a log scale`);
    if (most > 1) words.push(`lowest and highest of each ${most} values`);
    if (this.text) words.push(this.text);
    this.note.textContent = words.join(" · ");
  }
}

// Which columns fit into the window, how wide they are, and names that are shortened but stay different.
const pen = document.createElement("canvas").getContext("2d");
const MAX_TEXT_PX = 180, MIN_NAME_PX = 84, SHORT_NAME_PX = 130;
const NAME_WAY = 2.4; // a name that is not needed gives way after the reason, before seed and parameters

function textWidth(text, weight, size) {
  pen.font = `${weight} ${size}px ${getComputedStyle(document.body).fontFamily}`;
  return Math.ceil(pen.measureText(text).width);
}

// A column with a `text` becomes as wide as its title (with the sign of its order) and its longest text need.
export function measureColumns(columns, rows) {
  return columns.map(column => {
    if (!column.text) return column;
    const longest = rows.reduce((most, row) => { const text = column.text(row); return text.length > most.length ? text : most; }, "");
    const width = Math.max(column.width, textWidth(`${column.title} ↑`, 600, 12), textWidth(longest, 700, 14) + 2);
    return {...column, width: Math.min(width, MAX_TEXT_PX)};
  });
}

// Names of at most `size` characters that are all different: without the beginning that they share, if that is enough, else
// cut in the middle; where no cut leaves them different, they stay as long as they must. Each as its beginning and its end.
function shortenNames(names, size) {
  const distinct = [...new Set(names)], longest = distinct.reduce((most, name) => Math.max(most, name.length), 0);
  if (longest <= size) return new Map(distinct.map(name => [name, [name, ""]]));
  const shared = sharedBeginning(distinct);
  if (shared && longest - shared < size) return new Map(distinct.map(name => [name, ["…", name.slice(shared)]]));
  for (let room = Math.max(5, size); room < longest + 4; room += 4) {
    const heads = Array.from({length: room - 2}, (_, at) => at + 1).sort((a, b) => Math.abs(a - room / 3) - Math.abs(b - room / 3));
    for (const head of heads) { const cut = cutNames(distinct, room, head); if (cut) return cut; }
  }
  return new Map(distinct.map(name => [name, [name, ""]]));
}

// How many characters all names begin with, up to the end of a word.
function sharedBeginning(names) {
  const first = names[0], count = names.reduce((most, name) => { let at = 0; while (at < most && name[at] === first[at]) at++; return at; }, first.length);
  return Math.max(...["_", "/", "-"].map(sign => first.lastIndexOf(sign, count - 1))) + 1;
}

// Beginning and end of each name; null as soon as two would look the same.
function cutNames(names, room, head) {
  const cut = new Map(), seen = new Set();
  for (const name of names) {
    const parts = name.length <= room ? [name, ""] : [`${name.slice(0, head)}…`, name.slice(head + 1 - room)], text = parts.join("");
    if (seen.has(text)) return null;
    seen.add(text); cut.set(name, parts);
  }
  return cut;
}

// The names of the rows, shortened for the width of their column; computed when that or the rows change.
export class Names {
  constructor(names) {
    this.names = names; this.width = 0; this.cut = new Map(); this.min = this.good = 0;
    this.perCharacter = names.slice(0, 100).reduce((most, name) => Math.max(most, textWidth(name, 500, 14) / name.length), 5);
  }

  fit(width) {
    if (width === this.width) return;
    this.width = width;
    for (let size = Math.floor(width / this.perCharacter); ; size--) {
      this.cut = shortenNames(this.names, size);
      if (size <= 5 || widest(this.cut) <= width) break;
    }
  }

  // The width in which all of them are different.
  minWidth() { return this.min = this.min || widest(shortenNames(this.names, 8)); }

  // The width in which no more than the beginning that they share is left out.
  goodWidth() { return this.good = this.good || widest(new Map(this.names.slice(0, 200).map(name => [name, ["…", name.slice(sharedBeginning(this.names))]]))); }

  parts(name) { return this.cut.get(name) || [name, ""]; }
}

function widest(cut) { return [...cut.values()].slice(0, 200).reduce((most, parts) => Math.max(most, textWidth(parts.join(""), 500, 14)), 0) + 2; }

const isTelling = column => column.name.startsWith("param:") || column.name === "seed";

function areDifferent(rows, columns) {
  const telling = columns.filter(isTelling);
  return telling.length > 0 && new Set(rows.map(row => telling.map(column => column.text(row)).join("\n"))).size === rows.length;
}

// Leave columns out until the rest fits into `room`, the least telling first, and shorten those that have a `brief` form
// before a parameter is left out. Rows stay different: the name is left out only where parameters and seed tell the rows
// apart, and is there again when one of those is left out too.
export function fitColumns(columns, rows, room, gap, names) {
  const mayLeave = areDifferent(rows, columns), minName = Math.max(MIN_NAME_PX, names.minWidth());
  const shortName = mayLeave ? SHORT_NAME_PX : Math.min(minName, Math.max(MIN_NAME_PX, 0.6 * room));
  const nameWidth = Math.max(SHORT_NAME_PX, mayLeave ? Math.min(names.goodWidth(), 0.2 * room) : shortName);
  const isName = column => column.name === "run", name = {...columns.find(isName), width: nameWidth, way: mayLeave ? NAME_WAY : 0};
  let kept = columns.map(column => isName(column) ? name : column);
  const shorten = (test, change) => { kept = kept.map(column => test(column) ? {...column, ...change(column)} : column); };
  const needed = () => kept.reduce((sum, column) => sum + column.width + gap, -gap);
  while (room > 0 && needed() > room) {
    const worst = kept.reduce((most, column) => column.way >= most.way ? column : most);
    if (worst.way < 3 && kept.some(column => isName(column) && column.width > shortName)) shorten(isName, () => ({width: shortName}));
    else if (worst.way < NAME_WAY && kept.some(column => column.brief && !column.isBrief)) shorten(column => column.brief, column => ({width: column.brief, isBrief: true}));
    else if (!worst.way) break;
    else {
      kept = kept.filter(column => column !== worst);
      if (isTelling(worst) && !kept.some(isName)) kept.splice(1, 0, {...name, width: Math.min(minName, 0.6 * room), way: 0});
    }
  }
  return kept;
}

// Rows that stay: a table's body is brought to what is wanted, and only what differs is touched. So nothing flickers,
// what is selected stays selected, a panel keeps its place, and 100 engines cost no more than what changed of them.

export const count = new Intl.NumberFormat("en-US").format;

// Puts words, and a tone, on an element that holds nothing else.
export function say(node, words, tone) {
  if (!node.firstChild) node.append("");
  write(node.firstChild, words);
  if (tone !== undefined) mark(node, tone);
}
function write(text, words) { if (text.data !== words) text.data = words; }

// Gives a node one of the tones, beside the classes it has.
export function mark(node, tone) {
  for (const each of ["good", "warn", "bad", "dim"])
    if (node.classList.contains(each) !== (each === tone)) node.classList.toggle(each);
}

function cell(tag, className) {
  const made = document.createElement(tag);
  if (tag === "th") made.scope = "row";
  if (className) made.className = className;
  return made;
}

// Each kind of cell makes {node, set}. A value is a string, or {words, tone, …} with what the kind shows of it.
function words(tag, className) {
  return () => {
    const node = cell(tag, className);
    return {node, set: value => say(node, value.words ?? String(value), value.tone ?? "")};
  };
}
export const name = words("th"), word = words("td"), number = words("td", "n"), sentence = words("td", "wrap");

// {used, cap, words}: how much of a cap is used; without a cap, the words alone.
export function share() {
  const node = cell("td"), bar = document.createElement("span"), inner = document.createElement("i"), text = new Text();
  bar.className = "bar";
  bar.setAttribute("aria-hidden", "true");
  bar.append(inner);
  node.append(bar, text);
  return {node, set({used, cap, words: given}) {
    const isCapped = cap !== undefined && cap !== null, part = part_of(used, cap);
    if (bar.hidden === isCapped) bar.hidden = !isCapped;
    mark(bar, tone_of(part));
    const width = `${Math.round(Math.min(100, 100 * part))}%`;
    if (inner.style.width !== width) inner.style.width = width;
    write(text, given ?? (isCapped ? `${count(used)} of ${count(cap)}` : count(used)));
  }};
}
export function part_of(used, cap) {
  if (cap === undefined || cap === null) return 0;
  return cap > 0 ? used / cap : used > 0 ? 1 : 0;
}
export function tone_of(part) { return part > 0.8 ? "bad" : part > 0.5 ? "warn" : ""; }

// {points, top, words}: the course of a value, oldest first; without a top its own highest point is that.
export function plot() {
  const node = cell("td"), text = new Text(), space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg"), line = document.createElementNS(space, "polyline");
  svg.setAttribute("viewBox", "0 0 180 28");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  svg.append(line);
  node.append(svg, text);
  return {node, set({points, top: asked, tone, words: given}) {
    const top = Math.max(...points, asked ?? 0, 1e-9);
    const course = points.map((y, x) => `${180 - points.length + x},${(27 - 25 * y / top).toFixed(1)}`).join(" ");
    mark(line, tone ?? "");
    if (line.getAttribute("points") !== course) line.setAttribute("points", course);
    write(text, given);
  }};
}

export class Rows {
  // body: the id of a table's body, in the panel p-<id>; columns: a kind of cell for each column.
  constructor(body, columns) {
    this.body = document.getElementById(body);
    this.panel = document.getElementById(`p-${body}`);
    this.columns = columns;
    this.rows = new Map();
  }

  // wanted: [key, values] of each row, in order; room_rows: for how many the panel keeps room.
  show(wanted, room_rows) {
    if (this.panel.style.getPropertyValue("--rows") !== String(room_rows)) this.panel.style.setProperty("--rows", room_rows);
    const keys = new Set(wanted.map(([key]) => key));
    for (const [key, row] of this.rows) if (!keys.has(key)) { row.node.remove(); this.rows.delete(key); }
    let here = this.body.firstElementChild;
    for (const [key, values] of wanted) {
      const row = this.rows.get(key) ?? this.make(key);
      row.cells.forEach((each, column) => each.set(values[column]));
      if (row.node === here) here = here.nextElementSibling;
      else this.body.insertBefore(row.node, here);
    }
  }

  make(key) {
    const cells = this.columns.map(column => column()), node = document.createElement("tr");
    node.append(...cells.map(each => each.node));
    const row = {node, cells};
    this.rows.set(key, row);
    return row;
  }
}

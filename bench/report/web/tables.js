"use strict";
/* Tables: small ones, and those that are sorted and filtered. */
const DATA = REPORT.index;
const COLUMNS = new Map(DATA.columns.map((column) => [column.key, column]));
/* Rows of a board that are drawn before a reader asks for all. */
const MANY = 100;

function sortable(column, row) {
  const value = row[column.key];
  if (value === undefined || value === null || value === "" || (Array.isArray(value) && !value.length)) return null;
  if (value === "inf") return Infinity;
  if (column.kind === "runs") return value.length;
  return Array.isArray(value) ? value.join(" ") : value;
}
function compared(a, b) {
  if (typeof a === "number" && typeof b === "number") return a < b ? -1 : a > b ? 1 : 0;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}
function sorted(rows, column, down) {
  const keyed = rows.map((row, index) => ({ row, index, key: sortable(column, row) }));
  keyed.sort((a, b) => {
    if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.index - b.index;
    return (down ? -1 : 1) * compared(a.key, b.key) || a.index - b.index;
  });
  return keyed.map((one) => one.row);
}
function header(columns, state, redraw) {
  const cells = columns.map((column) => {
    const active = state.sort === column.key;
    const act = () => {
      state.down = active && !state.down;
      state.sort = column.key;
      redraw(column.key);
    };
    const button = element("button", { type: "button", "data-column": column.key, title: column.tip || null, on: { click: act } }, column.label);
    const order = active ? (state.down ? "descending" : "ascending") : null;
    return element("th", { scope: "col", "aria-sort": order, class: isNumber(column) ? "number" : null }, button);
  });
  return element("thead", {}, element("tr", {}, cells));
}
const isNumber = (column) => ["number", "percent", "epsilon", "seconds"].includes(column.kind);
const SEARCHED = new WeakMap();
function text(row) {
  if (!SEARCHED.has(row)) SEARCHED.set(row, Object.values(row).flat().join(" ").toLowerCase());
  return SEARCHED.get(row);
}
const matches = (row, words) => words.every((word) => text(row).includes(word));

function state(name) {
  if (!STATES.has(name)) STATES.set(name, { sort: null, down: false, words: "", picked: {}, all: false });
  return STATES.get(name);
}
/* A split as it is sorted: the usual one before the others. */
const usualFirst = (split) => (split === "iid" ? "" : split);
function grouped(rows, column, base) {
  const groups = new Map();
  for (const row of rows) {
    const within = ((column && column.within) || []).map((key) => row[key]).filter(Boolean);
    const key = JSON.stringify([...base.map((one) => row[one]), ...within]);
    if (!groups.has(key)) groups.set(key, { base: base.map((one) => row[one]), within, rows: [] });
    groups.get(key).rows.push(row);
  }
  const order = DATA.order.tiers;
  const rank = (group) => [...group.base.map((one) => (order.includes(one) ? order.indexOf(one) : usualFirst(one))), group.within.length ? 0 : 1, ...group.within];
  return [...groups.values()].sort((a, b) => {
    const [left, right] = [rank(a), rank(b)];
    return left.map((one, index) => compared(one, right[index])).find((found) => found) || 0;
  });
}
function groupHead(group, width, column) {
  const parts = group.base.length ? [`tier ${group.base[0]}, split ${group.base[1]}`] : [];
  if (group.within.length) parts.push(`${["attack", "metric"].includes(column.within[0]) ? column.within[0] : "per"} ${group.within.join(" ")}`);
  if (group.base[0] === "smoke") parts.push(DATA.tiers.smoke);
  return element("tr", { class: "group" }, element("th", { colspan: width, scope: "rowgroup" }, element("span", {}, parts.join(" · "))));
}
/* The first `most` rows, group by group; a group with none of them is left out. */
function bodies(rows, columns, by, down, base, write, most) {
  let left = most === undefined ? Infinity : most;
  return grouped(rows, by, base).flatMap((group) => {
    const kept = (by ? sorted(group.rows, by, down) : group.rows).slice(0, left);
    left -= kept.length;
    const lines = kept.map((row) => element("tr", {}, columns.map((column) => write(column, row))));
    const head = group.base.length || group.within.length ? groupHead(group, columns.length, by) : null;
    return lines.length ? [element("tbody", {}, head, lines)] : [];
  });
}
function flagChip(flag) {
  const kind = flag === "refuted" ? "chip worst" : "chip alarm";
  return element("span", { class: kind, title: DATA.flags[flag] }, flag);
}
/* Flags in a narrow cell: their number, which opens. */
function flagFold(flags) {
  if (flags.length < 2) return flags.map(flagChip);
  return element("details", { class: "fold" }, element("summary", { class: "chip alarm" }, `${flags.length} flags`), flags.map((flag) => element("div", {}, flagChip(flag))));
}
function flagList(title, flags) {
  if (!flags.length) return null;
  const lines = flags.map((flag) => element("li", {}, flagChip(flag), " ", sentence(DATA.flags[flag])));
  return element("section", {}, element("h2", {}, title), element("ul", { class: "plain flags" }, lines));
}

/* A table without the columns in which no row says anything. */
function fullGrid(label, heads, rows, numeric, kind, prose) {
  const says = (value) => value !== null && value !== undefined && value !== "" && !(Array.isArray(value) && !value.length);
  const kept = heads.map((_, index) => index).filter((index) => !index || rows.some((row) => Array.isArray(row) && says(row[index])));
  const moved = (columns) => (columns || []).map((index) => kept.indexOf(index)).filter((index) => index >= 0);
  return grid(label, kept.map((index) => heads[index]), rows.map((row) => (Array.isArray(row) ? kept.map((index) => row[index]) : row)), moved(numeric), kind, moved(prose));
}
/* A table; a row that is no array is a heading over all columns. On a phone the rows of a table of kind "stack" are
   blocks: numbers with their headers next to each other, and `prose` columns below, over the whole width. */
function grid(label, heads, rows, numeric, kind, prose) {
  const right = new Set(numeric || []);
  const head = element("tr", {}, heads.map((name, index) => element("th", { scope: "col", class: right.has(index) ? "number" : null }, name)));
  const lines = rows.map((row) => !Array.isArray(row) ? element("tr", { class: "group" }, element("th", { scope: "colgroup", colspan: heads.length }, row)) : element("tr", {}, row.map((value, index) => {
    const kinds = [right.has(index) ? "number" : "", index === 0 ? "pre" : "", (prose || []).includes(index) ? "prose" : ""];
    const properties = { class: kinds.filter(Boolean).join(" ") || null };
    return index === 0 ? element("th", { scope: "row", ...properties }, value) : element("td", { ...properties, "data-head": heads[index] }, value);
  })));
  return boxed(label, element("table", {}, element("thead", {}, head), element("tbody", {}, lines)), kind);
}

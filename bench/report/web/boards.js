"use strict";
/* Pages of one data set: board, charts, images. */
function cell(column, row) {
  const value = row[column.key];
  const missing = value === undefined || (Array.isArray(value) && !value.length);
  if (column.kind === "runs") return element("td", {}, seedLinks(row));
  if (column.kind === "flags") return element("td", {}, flagFold(value || []));
  if (column.key.endsWith("variant") && value) return element("td", { title: DATA.variants[value] }, value);
  if (column.key === "method" && row.runs.length) return element("td", {}, methodLink(value));
  if (missing) return element("td", { class: isNumber(column) ? "number" : null });
  if (column.kind === "percent") return element("td", { class: "number" }, percent(value), spread(column, row));
  if (column.kind === "epsilon") return element("td", { class: "number" }, number(value), unit(column, row));
  if (column.kind === "seconds") return element("td", { class: "number" }, seconds(value));
  if (column.kind === "number") return element("td", { class: "number" }, number(value));
  if (column.key === "power" && value !== "pass") return element("td", {}, element("span", { class: "chip alarm" }, value));
  if (column.key === "setting") return element("td", { class: "wide" }, value.split(" ").flatMap((one) => [element("span", { class: "one" }, one), " "]));
  return element("td", { class: column.key === "device" ? "wide" : null }, value);
}
function spread(column, row) {
  const value = row[column.key === "accuracy_mean" ? "accuracy_std" : `${column.key}_std`];
  return value === undefined ? null : element("span", { class: "spreads" }, ` ± ${(100 * value).toFixed(1)}`);
}
function unit(column, row) {
  const name = column.key.includes("audited") ? "example" : row[column.within[0]];
  return name ? element("span", { class: "unit", title: DATA.units[name] }, `per ${name}`) : null;
}
const seedLinks = (row) => row.runs.flatMap((hash, index) => [runLink(hash, row.seeds[index]), " "]);
const FILTERS = [["tier", "tier"], ["variant", "variant"], ["kind", "kind"], ["claim_unit", "claimed per"], ["unit", "accounted per"], ["attack", "attack"]];
function boardTable(dataset, now, redraw) {
  const words = now.words.toLowerCase().split(/\s+/).filter(Boolean);
  const kept = dataset.rows.filter((row) => matches(row, words) && FILTERS.every(([key]) => !now.picked[key] || row[key] === now.picked[key]));
  const chosen = dataset.columns.map((key) => COLUMNS.get(key)).filter((column) => now.all || column.core);
  const [first, ways] = [chosen.findIndex((column) => column.key === "accuracy_mean") + 1, chosen.filter((column) => column.kind === "runs")];
  const others = (found) => found.filter((column) => column.kind !== "runs");
  const columns = [...others(chosen.slice(0, first)), ...ways, ...others(chosen.slice(first))];
  const by = now.sort ? COLUMNS.get(now.sort) : null;
  return [element("table", { class: "board" }, header(columns, now, redraw), bodies(kept, columns, by, now.down, ["tier", "split"], cell, now.every ? undefined : MANY)), kept.length];
}
function controls(dataset, now, redraw) {
  const input = element("input", { type: "search", placeholder: "method, setting, flag …", value: now.words, id: "words",
    on: { input: (event) => { now.words = event.target.value; redraw(); } } });
  const pickers = FILTERS.map(([key, label]) => {
    const values = [...new Set(dataset.rows.map((row) => row[key]).filter(Boolean))].sort();
    return values.length ? picker(label, values, now.picked[key] || "", (value) => { now.picked[key] = value; redraw(); }) : null;
  });
  const all = element("input", { type: "checkbox", checked: now.all, on: { change: (event) => { now.all = event.target.checked; redraw(); } } });
  return element("div", { class: "controls" }, element("label", {}, "search", input), pickers, element("label", { class: "check" }, all, "all columns"));
}
async function board({ name, file }) {
  const dataset = await part(`board-${file}`);
  const now = state(dataset.name);
  const count = element("p", { class: "note", role: "status", id: "count" });
  const box = boxed(`board of ${dataset.name}`, "", "tall");
  const more = element("button", { type: "button", on: { click: () => { now.every = true; redraw(); box.focus(); } } });
  const redraw = (focus) => {
    const [table, shown] = boardTable(dataset, now, redraw);
    const left = box.scrollLeft;
    box.replaceChildren(table);
    box.scrollLeft = left;
    more.hidden = now.every || shown <= MANY;
    more.textContent = `show all ${shown} rows, not only the first ${MANY}`;
    count.textContent = `${shown} of ${dataset.rows.length} rows. Tiers, splits and units are never ranked together: sorting stays inside each group.`;
    const again = focus && [...box.querySelectorAll("thead button")].find((button) => button.dataset.column === focus);
    if (again) again.focus();
  };
  redraw();
  return [heading(`${name}: board`), tabs("board", name), note(`${counted(dataset.runs, "run", "runs")}. A row is a setting, averaged over its seeds; follow a seed to its run. Click a column's head to sort.`),
    controls(dataset, now, redraw), count, box, more, flagList("Meaning of the flags", [...new Set(dataset.rows.flatMap((row) => row.flags))].sort()),
    auditTable("Audits", dataset.audits)];
}

async function charts({ name, file }) {
  const { markup } = await part(`charts-${file}`);
  const shown = drawn(markup, "charts");
  shown.querySelector("h1").after(tabs("charts", name));
  return [shown];
}
async function images({ name, file }) {
  const found = await part(`images-${file}`);
  return [heading(`${name}: images`), tabs("images", name), found.length ? note("Follow a caption to its run.") : note("No pictures: give the runs' directories with --runs."), gallery(found)];
}
function gallery(found) {
  const kinds = [...new Set(found.map((one) => one.kind))];
  return kinds.map((kind) => section(kind, element("div", { class: "pictures" }, found.filter((one) => one.kind === kind).map((one) =>
    picture(one.kind, one.key, `${one.kind}: ${one.label}`, runLink(one.run, one.label))))));
}
function picture(name, key, alt, caption) {
  return element("figure", {}, element("figcaption", {}, caption || name), element("img", { src: `pictures/${key}.png`, alt, loading: "lazy" }));
}

/* The pages of a data set, and the way to another one. */
function tabs(kind, name) {
  const kinds = [["board", "Board"], ["charts", "Charts"], ...(DATA.datasets.some((one) => one.pictures) ? [["images", "Images"]] : [])];
  const chosen = picker("data set", DATA.datasets.map((one) => one.name), name, (value) => { location.hash = address(kind, value); }, null);
  chosen.querySelector("select").id = "dataset";
  return element("nav", { class: "tabs", "aria-label": "pages of a data set" }, chosen, kinds.map(([each, label]) =>
    element("a", { href: address(each, name), "aria-current": each === kind ? "page" : null }, label)));
}
/* One point of a chart is brought out with all of its method, in the panels that its legend stands with. */
function bringOut(button) {
  const place = button.closest(".panel") || button.closest(".tier");
  const method = button.getAttribute("aria-pressed") === "true" ? null : button.dataset.method;
  for (const one of place.querySelectorAll("svg [data-method]")) one.classList.toggle("dim", method !== null && one.dataset.method !== method);
  for (const one of place.querySelectorAll(".legend button")) one.setAttribute("aria-pressed", String(one.dataset.method === method));
}

"use strict";
/* The papers' tables and figures, and all numbers that they print. */
const PAPERS = { "dp-dfd": "DP-DFD", dpdfd: "DPDFD", dgd: "DGD", dpsd: "DPSD" };
const subjectOf = (one) => one.title.replace(/^[^:]*: /, "");
/* Figures that are pictures, of which this report has none. */
function undrawn(paper) {
  const names = DATA.papers.undrawn.filter(([of]) => of === paper).map(([, name]) => name);
  if (!names.length) return null;
  return note(`${names.join(" and ")} ${names.length === 1 ? "is" : "are"} left out: ${names.length === 1 ? "it shows" : "they show"} images, and this report has none of such runs. Give the runs' directories with --runs.`);
}
function papers() {
  const sections = Object.entries(PAPERS).map(([paper, name]) => {
    const tables = DATA.papers.tables.filter((one) => one.paper === paper).map((one) => [link("table", one.slug, one.table), element("span", { class: "list" }, subjectOf(one)), String(one.cells), String(one.ours), String(one.within)]);
    const figures = DATA.papers.figures.filter((one) => one.paper === paper).map((one) => [link("figure", one.slug, one.figure), element("span", { class: "list" }, subjectOf(one)), String(one.ours), String(one.printed)]);
    return section(name, tables.length ? grid(`tables of ${name}`, ["table", "", "accuracies", "ours", "within 2 points"], tables, [2, 3, 4], "fit stack", [1]) : null,
      figures.length ? [element("h3", {}, "Figures"), grid(`figures of ${name}`, ["figure", "", "our points", "printed"], figures, [2, 3], "fit stack", [1]), undrawn(paper)] : undrawn(paper));
  });
  return [heading("The papers' tables and figures"), note("Ours next to the published numbers. Within: at most two points of accuracy behind, or better, by the variant that is run by default."),
    DATA.papers.numbers ? element("p", {}, element("a", { href: "#reported" }, `All ${DATA.papers.numbers} numbers that the papers print`)) : null, ...sections];
}

/* How far ours is from print: the colour and the word. */
function closeness(difference) {
  if (difference > DATA.papers.close) return ["ahead", "ahead"];
  if (difference >= -DATA.papers.close) return ["near", "within 2 points"];
  return difference >= -0.1 ? ["behind", "behind"] : ["far", "more than 10 points behind"];
}
async function table(slug) {
  const found = await part(`table-${slug}`);
  const measured = found.lines.filter((line) => line.ours);
  const near = `ours for ${found.ours}, of which ${found.within} ${found.within === 1 ? "is" : "are"} within two points or better. Another tier is another size, and no paper prints the variant working.`;
  return [heading(`${PAPERS[found.paper] || found.paper}, ${found.table}`),
    note(found.title),
    element("p", {}, `${counted(found.cells, "accuracy", "accuracies")}; ${found.ours ? near : "ours for none."}`),
    section("As printed, with ours below", matrix(found), keys(found.lines)),
    found.chart ? drawn(found.chart, "panels") : null,
    measured.length ? section("Ours, number by number", oursTable(measured)) : null,
    reasonList(measured),
    section("Do it again", found.recipe ? command(`bench sweep ${found.recipe}`) : null, command(`bench papers compare --paper ${found.paper} --table "${found.table}"`)),
    issues(found.lines)];
}
function budgetOf(line) {
  if (line.epsilon !== null) return `ε ${line.epsilon}`;
  if (line.either.length) return `ε ${line.either.join(" or ")}`;
  return line.unit === "none" ? "no privacy" : "ε not printed";
}
/* Rows are methods, columns data sets and budgets, as most of the tables have them. */
function matrix(found) {
  const columns = new Map();
  const rows = new Map();
  for (const line of found.lines) {
    const budget = budgetOf(line);
    const column = `${line.dataset} ${budget}`;
    const name = [line.method, line.ablation, line.unit === "label" ? "(labels)" : ""].filter(Boolean).join(" ");
    if (!columns.has(column)) columns.set(column, [line.dataset, line.either.length ? line.either[0] : line.epsilon, budget]);
    if (!rows.has(name)) rows.set(name, { method: line.method, cells: new Map() });
    const cells = rows.get(name).cells;
    if (line.shown) cells.set(column, [...(cells.get(column) || []), line]);
  }
  const order = [...columns.entries()].sort(([, a], [, b]) => compared(a[0], b[0]) || (a[1] === null ? 0 : a[1]) - (b[1] === null ? 0 : b[1])).map(([key]) => key);
  const heads = order.map((key) => { const [dataset, , budget] = columns.get(key); return [dataset, element("br"), budget]; });
  const known = new Set(DATA.methods.map((one) => one.name));
  const lines = [...rows.entries()].map(([name, row]) => [known.has(row.method) ? methodLink(row.method, name) : name, ...order.map((key) => printedCell(row.cells.get(key)))]);
  return grid(`${found.table} with ours`, ["method", ...heads], lines, [], "fit sheet");
}
/* Where ours was measured, if that is not the data set that the paper names: a subset of it, other files. */
const where = (line) => (line.ours.dataset === line.dataset ? "" : `, on ${line.ours.dataset}`);
/* Printed numbers, and ours of each: first the one that counts, then the others that the cell shows. */
function printedCell(lines) {
  if (!lines) return "";
  const counting = [...lines].sort((a, b) => a.entry - b.entry || b.counts - a.counts);
  return counting.map((line, index) => [
    index && counting[index - 1].entry === line.entry ? null : element("span", { class: "printed" }, percent(line.printed, 2)), ourCell(line)]).flat();
}
function ourCell(line) {
  if (!line.ours) return element("span", { class: "ours none" }, line.state);
  const [kind, word] = closeness(line.ours.difference);
  const label = line.label ? element("small", { class: "told" }, `${line.label}: `) : "";
  return element("a", { class: `ours ${kind}`, href: `#run-${line.ours.run}`, title: `ours${where(line)}, ${line.ours.variant}, tier ${line.ours.tier}: ${word}` },
    label, `${percent(line.ours.accuracy, 1)} `, element("small", {}, points(line.ours.difference)));
}
/* What the colours mean, and the words where a number has none of ours. */
const ABSENT = { "planned": "the bench has no such method or data", "not run": "the bench has method and data", "no data set named": "the sentence does not say of which data it speaks",
  "epsilon not stated": "the paper does not say under which epsilon, so no run is of it", "protection not stated": "the paper does not say by which method" };
function keys(lines) {
  const absent = Object.entries(ABSENT).filter(([state]) => lines.some((line) => line.state === state));
  const colours = [["ahead", "ahead by more than 2 points"], ["near", "within 2 points"], ["behind", "2 to 10 points behind"], ["far", "more than 10 behind"]];
  return element("ul", { class: "keys" }, [...colours.map(([kind, meaning]) => [kind, "ours", meaning]), ...absent.map(([state, meaning]) => ["none", state, meaning])].map(([kind, word, meaning]) =>
    element("li", {}, element("span", { class: `ours ${kind}` }, word), ` ${meaning}`)));
}
function oursTable(lines) {
  const rows = lines.map(({ ours, ...line }) => {
    const [kind, word] = closeness(ours.difference);
    return [[line.method, line.ablation].filter(Boolean).join(" "), `${line.dataset}${line.epsilon === null ? "" : `, ε ${line.epsilon}`}`, percent(line.printed, 2),
      runLink(ours.run, percent(ours.accuracy, 1)), element("span", { class: `ours ${kind}`, title: word }, points(ours.difference)),
      ours.reason ? element("button", { type: "button", class: "chip", title: DATA.papers.reasons[ours.reason.code], on: { click: toReasons } }, because(ours.reason)) : "",
      element("span", { class: "words" }, `${ours.variant}, ${ours.tier}, ${ours.seeds === 1 ? "1 seed" : `${ours.seeds} seeds`}`, ours.setting ? `; ${ours.setting}` : "", where({ ours, ...line })),
      ours.epsilon === null ? "" : [number(ours.epsilon), element("span", { class: "unit" }, `per ${ours.unit}`)], line.allows === null ? "" : percent(line.allows), number(ours.information),
      flagFold(ours.flags)];
  });
  return fullGrid("ours next to the published numbers", ["method", "where", "printed", "ours", "difference", "reason", "run as", "ε accounted", "printed settings allow", "nats", "flags"], rows, [2, 3, 4, 7, 8, 9], "fit stack", [6]);
}
function because(reason) {
  return reason.closes === null ? reason.code : `${reason.code}${reason.code === "learns-less" ? ", noise" : ""} ${percent(reason.closes, 0)}`;
}
function toReasons() {
  document.getElementById("reasons").scrollIntoView();
  document.getElementById("reasons").focus();
}
function reasonList(lines) {
  const found = new Map();
  for (const { ours } of lines) if (ours.reason) found.set(ours.reason.code, [...(found.get(ours.reason.code) || []), ours.reason.experiment]);
  if (!found.size) return null;
  const items = [...found.entries()].flatMap(([name, experiments]) => [element("dt", {}, name), element("dd", {}, DATA.papers.reasons[name], element("ul", { class: "bare" }, [...new Set(experiments)].map((one) => element("li", {}, code(one)))))]);
  return element("section", { id: "reasons", tabindex: "-1" }, element("h2", {}, "Reasons, and the experiment behind each"), element("dl", { class: "facts" }, items));
}
function issues(lines) {
  const found = new Map();
  for (const line of lines) for (const issue of line.issues) found.set(issue, (found.get(issue) || new Set()).add(line.entry));
  if (!found.size) return null;
  return section("Doubts about the printed numbers", note("The names are those of docs/papers.md."), element("ul", { class: "plain" }, [...found.entries()].map(([issue, entries]) =>
    element("li", {}, element("strong", {}, issue), `, ${counted(entries.size, "number", "numbers")}. ${DATA.papers.issues[issue] || ""}`))));
}
const VERDICTS = { "as said": "near", "in part": "behind", "not seen": "none", "the opposite": "far", "ours at chance": "none", "one seed": "none" };
function sentences(answers) {
  if (!answers.length) return null;
  const rows = answers.map((each) => [each.text, each.dataset, element("span", { class: `ours ${VERDICTS[each.verdict]}` }, each.verdict), element("span", { class: "words", title: each.line }, each.numbers)]);
  return section("Sentences of the text about it", note("A difference counts if it is larger than the standard deviations of both together; of one seed, and of ours that are all near the largest class's share, nothing is concluded. Point at our numbers to see which line they are of."),
    grid("sentences of the text, and our runs", ["the text says", "on", "ours", "ours, in numbers"], rows, []));
}
async function figure(slug) {
  const found = await part(`figure-${slug}`);
  return [heading(`${PAPERS[found.paper] || found.paper}, ${found.figure}`), note(found.title),
    element("p", {}, found.note, " ", found.markup || found.single ? `${found.ours ? `${counted(found.ours, "point is", "points are")} ours` : found.single ? "No two points of ours lie on one line" : "None of it was run"}; ${found.printed ? `${counted(found.printed, "number is", "numbers are")} printed` : "no number is printed"}.` : `${counted(found.gallery.length, "picture is", "pictures are")} ours.`),
    found.markup ? [note("Filled: ours, the mean over seeds; the bar is one standard deviation. Hollow and dashed: as printed. A line joins runs that differ in what the axis says and in nothing else; grey points are runs of other settings, which each names."), drawn(found.markup, "figures")] : null,
    found.single ? element("details", {}, element("summary", {}, "Charts of one place on the axis, of which nothing can be read yet"), drawn(found.single, "figures")) : null,
    sentences(found.answers), gallery(found.gallery), found.recipe ? section("Do it again", command(`bench sweep ${found.recipe}`)) : null];
}

const REPORTED = { paper: "text", table: "text", dataset: "text", method: "text", kind: "text", unit_claimed: "text", epsilon: "number", delta: "number", metric: "text", value: "number", setting: "text", note: "text", issue: "text" };
async function reported() {
  const found = await part("reported");
  const now = state("\u0000reported");
  const columns = Object.entries(REPORTED).map(([key, kind]) => ({ key, kind, label: key.replace("_", " "), within: { epsilon: ["unit_claimed"], value: ["metric"] }[key] || [] }));
  const write = (column, row) => element("td", { class: isNumber(column) ? "number" : ["setting", "note"].includes(column.key) ? "wide long" : null }, row[column.key] === undefined ? "" : number(row[column.key]));
  const rows = found.map((row) => Object.fromEntries(columns.map(({ key, kind }) => [key, kind === "number" && row[key] !== "" && Number.isFinite(Number(row[key])) ? Number(row[key]) : row[key] || undefined])));
  const count = element("p", { class: "note", role: "status" });
  const box = boxed("numbers printed by the papers", "", "tall");
  const redraw = (focus) => {
    const kept = rows.filter((row) => matches(row, now.words.toLowerCase().split(/\s+/).filter(Boolean)) && (!now.picked.dataset || row.dataset === now.picked.dataset));
    const by = columns.find((column) => column.key === now.sort);
    box.replaceChildren(element("table", {}, header(columns, now, redraw), bodies(kept, columns, by, now.down, [], write)));
    count.textContent = `${kept.length} of ${rows.length} numbers`;
    const again = focus && [...box.querySelectorAll("thead button")].find((button) => button.dataset.column === focus);
    if (again) again.focus();
  };
  redraw();
  const input = element("input", { type: "search", value: now.words, on: { input: (event) => { now.words = event.target.value; redraw(); } } });
  const sets = [...new Set(rows.map((row) => row.dataset))].sort();
  return [heading("Printed by the papers"), note("As the papers print them, in their own words: what they call data or label protection is not always a unit of this bench."),
    element("div", { class: "controls" }, element("label", {}, "search", input), picker("data set", sets, now.picked.dataset || "", (value) => { now.picked.dataset = value; redraw(); })), count, box];
}

/* What the report shows of it elsewhere: a link in the header, a door on the front page, tables on a method's page. */
const listed = (page, all) => (slug) => (all.some((one) => one.slug === slug) ? page(slug) : null);
SECTIONS.push({
  link: ["Papers", "#papers"],
  routes: { papers: ["Papers", papers], table: ["Papers", listed(table, DATA.papers.tables)], figure: ["Papers", listed(figure, DATA.papers.figures)], reported: ["Papers", reported] },
  door: () => {
    const count = (key) => DATA.papers.tables.reduce((sum, one) => sum + one[key], 0);
    return door("#papers", "Papers", `${DATA.papers.tables.length} tables and groups of sentences, ${count("cells")} accuracies: ours for ${count("ours")}, within two points or better ${count("within")}. ${DATA.papers.figures.length} figures.`);
  },
  ofMethod: (page) => (page.sections.papers ? section("In the papers", grid("tables with it", ["table", "numbers", "ours"], page.sections.papers.map((one) => [link("table", one.slug, one.title), String(one.cells), String(one.ours)]), [1, 2])) : null),
});

"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const VIEW = document.getElementById("view");
const CHARTS = document.getElementById("charts");
const SELECT = document.getElementById("dataset");
const COLUMNS = new Map(DATA.columns.map((column) => [column.key, column]));
const STATES = new Map();
const SCROLLED = new Map();
let current = "";
let chosen = DATA.datasets[0].name;

/* Elements. Text is set as text, never as markup. */
function element(name, properties, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (key === "class") made.className = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}
const heading = (text) => element("h1", { tabindex: "-1" }, text);
const note = (...children) => element("p", { class: "note" }, ...children);
const runLink = (hash, text) => element("a", { href: `#run-${hash}` }, text);
const boxed = (label, table, kind) => element("div", { class: `box ${kind || "fit"}`, role: "region", "aria-label": label, tabindex: "0" }, table);

/* Numbers as people read them. */
const percent = (value, digits) => `${(100 * value).toFixed(digits === undefined ? 1 : digits)} %`;
function number(value) {
  if (value === "inf" || value === Infinity) return "∞";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) || Math.abs(value) >= 1e3) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  if (value !== 0 && Math.abs(value) < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(4)));
}
function seconds(value) {
  if (value < 90) return `${value.toFixed(0)} s`;
  return value < 5400 ? `${(value / 60).toFixed(0)} min` : `${(value / 3600).toFixed(1)} h`;
}
const between = (low, high, shown) => (low === null || low === undefined ? "" : `[${shown(low)}, ${shown(high)}]`);

/* Tables that can be sorted and filtered. */
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
const text = (row) => Object.values(row).flat().join(" ").toLowerCase();
const matches = (row, words) => words.every((word) => text(row).includes(word));

/* A board. */
function state(name) {
  if (!STATES.has(name)) STATES.set(name, { sort: null, down: false, words: "", picked: {}, all: false });
  return STATES.get(name);
}
function cell(column, row) {
  const value = row[column.key];
  const missing = value === undefined || (Array.isArray(value) && !value.length);
  if (column.kind === "runs") return element("td", {}, runs(row));
  if (column.kind === "flags") return element("td", { class: "wide long" }, (value || []).map(flagChip));
  if (column.key.endsWith("variant") && value) return element("td", { title: DATA.variants[value] }, value);
  if (column.key === "method" && row.runs.length) return element("td", {}, runLink(row.runs[0], value));
  if (missing) return element("td", { class: isNumber(column) ? "number" : null });
  if (column.kind === "percent") return element("td", { class: "number" }, percent(value), spread(column, row));
  if (column.kind === "epsilon") return element("td", { class: "number" }, number(value), unit(column, row));
  if (column.kind === "seconds") return element("td", { class: "number" }, seconds(value));
  if (column.kind === "number") return element("td", { class: "number" }, number(value));
  if (column.key === "power" && value !== "pass") return element("td", {}, element("span", { class: "chip alarm" }, value));
  const wide = ["setting", "device", "reported_source"].includes(column.key);
  return element("td", { class: wide ? "wide" : null }, value);
}
function spread(column, row) {
  const value = row[column.key === "accuracy_mean" ? "accuracy_std" : `${column.key}_std`];
  return value === undefined ? null : element("span", { class: "spreads" }, ` ± ${(100 * value).toFixed(1)}`);
}
function unit(column, row) {
  const name = column.key.includes("audited") ? "example" : row[column.within[0]];
  return name ? element("span", { class: "unit", title: DATA.units[name] }, `per ${name}`) : null;
}
const runs = (row) => row.runs.flatMap((hash, index) => [runLink(hash, row.seeds[index]), " "]);
function flagChip(flag) {
  const kind = flag === "refuted" ? "chip worst" : "chip alarm";
  return element("span", { class: kind, title: DATA.flags[flag] }, flag);
}
function grouped(rows, column, base) {
  const groups = new Map();
  for (const row of rows) {
    const within = ((column && column.within) || []).map((key) => row[key]).filter(Boolean);
    const key = JSON.stringify([...base.map((one) => row[one]), ...within]);
    if (!groups.has(key)) groups.set(key, { base: base.map((one) => row[one]), within, rows: [] });
    groups.get(key).rows.push(row);
  }
  const order = Object.keys(DATA.tiers);
  const rank = (group) => [...group.base.map((one) => (order.includes(one) ? order.indexOf(one) : one)), group.within.length ? 0 : 1, ...group.within];
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
function bodies(rows, columns, by, down, base, write) {
  return grouped(rows, by, base).map((group) => {
    const lines = (by ? sorted(group.rows, by, down) : group.rows).map((row) => element("tr", {}, columns.map((column) => write(column, row))));
    const head = group.base.length || group.within.length ? groupHead(group, columns.length, by) : null;
    return element("tbody", {}, head, lines);
  });
}
const FILTERS = [["tier", "tier"], ["variant", "variant"], ["kind", "kind"], ["claim_unit", "claimed per"], ["unit", "accounted per"], ["attack", "attack"]];
function boardTable(dataset, now, redraw) {
  const words = now.words.toLowerCase().split(/\s+/).filter(Boolean);
  const kept = dataset.rows.filter((row) => matches(row, words) && FILTERS.every(([key]) => !now.picked[key] || row[key] === now.picked[key]));
  const columns = dataset.columns.map((key) => COLUMNS.get(key)).filter((column) => now.all || column.core);
  const by = now.sort ? COLUMNS.get(now.sort) : null;
  return [element("table", { class: "board" }, header(columns, now, redraw), bodies(kept, columns, by, now.down, ["tier", "split"], cell)), kept.length];
}
function picker(label, values, value, act) {
  const options = ["", ...values].map((one) => element("option", { value: one, selected: one === value }, one || "all"));
  return element("label", {}, label, element("select", { on: { change: (event) => act(event.target.value) } }, options));
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
function board(dataset) {
  const now = state(dataset.name);
  const count = element("p", { class: "note", role: "status", id: "count" });
  const box = boxed(`board of ${dataset.name}`, "", "tall");
  const redraw = (focus) => {
    const [table, shown] = boardTable(dataset, now, redraw);
    const left = box.scrollLeft;
    box.replaceChildren(table);
    box.scrollLeft = left;
    count.textContent = `${shown} of ${dataset.rows.length} rows. Tiers, splits and units are never ranked together: sorting stays inside each group.`;
    const again = focus && [...box.querySelectorAll("thead button")].find((button) => button.dataset.column === focus);
    if (again) again.focus();
  };
  redraw();
  return [heading(`${dataset.name}: board`), note(`${dataset.runs} runs. A row is a setting, averaged over its seeds; follow a seed to its run. Click a column's head to sort.`),
    controls(dataset, now, redraw), count, box, flagList("What the flags mean", [...new Set(dataset.rows.flatMap((row) => row.flags))].sort()),
    auditTable("Audits", dataset.audits)];
}
function flagList(title, flags) {
  if (!flags.length) return null;
  const lines = flags.map((flag) => element("li", {}, flagChip(flag), " ", DATA.flags[flag]));
  return element("section", {}, element("h2", {}, title), element("ul", { class: "plain flags" }, lines));
}

/* Small tables. */
/* A table; a row that is no array is a heading over all columns. */
function grid(label, heads, rows, numeric) {
  const right = new Set(numeric || []);
  const head = element("tr", {}, heads.map((name, index) => element("th", { scope: "col", class: right.has(index) ? "number" : null }, name)));
  const lines = rows.map((row) => !Array.isArray(row) ? element("tr", { class: "group" }, element("th", { scope: "colgroup", colspan: heads.length }, row)) : element("tr", {}, row.map((value, index) => {
    const properties = { class: [right.has(index) ? "number" : "", index === 0 ? "pre" : ""].join(" ").trim() || null };
    return index === 0 ? element("th", { scope: "row", ...properties }, value) : element("td", properties, value);
  })));
  return boxed(label, element("table", {}, element("thead", {}, head), element("tbody", {}, lines)));
}
function section(title, ...content) {
  const kept = content.flat().filter(Boolean);
  return kept.length ? element("section", {}, element("h2", {}, title), kept) : null;
}
function facts(pairs) {
  const lines = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return element("dl", { class: "facts" }, lines.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}
function auditTable(title, audits) {
  if (!audits.length) return null;
  const names = { student: "student, released", teacher: "teacher, undefended", null: "null run, no canary" };
  const lines = audits.flatMap((audit) => audit.lines.map(([name, correct, guesses, bound, accuracy]) =>
    [`${audit.method}${audit.setting ? ` (${audit.setting})` : ""}: ${names[name] || name}`, `${correct} of ${guesses}`, number(bound), number(audit.ceiling), percent(accuracy)]));
  const verdicts = audits.flatMap((audit) => [element("li", {}, element("strong", {}, `${audit.method}${audit.setting ? ` (${audit.setting})` : ""}: ${audit.verdict}. `), audit.reasons.join("; "), audit.powerful ? "" : "; the teacher's bound is 0, so the audit shows nothing", ".")]);
  return section(title, note("Mislabelled canaries, half of them in the teacher's data; an attack guesses from the student which. The bound is epsilon's, per record, at 95 %. Not refuted is not verified."),
    grid("audits", ["model", "right guesses", "ε at least", "could show", "accuracy"], lines, [1, 2, 3, 4]), element("ul", { class: "plain" }, verdicts));
}

/* A run. */
function run(hash) {
  const found = DATA.runs[hash];
  if (!found) return [heading("No such run"), note(`This page holds no run ${hash}.`)];
  const name = `${found.method} on ${found.dataset}`;
  return [
    heading(`${name}, seed ${found.seed}`),
    found.tier === "smoke" ? element("p", { class: "smoke" }, `Smoke run: ${DATA.tiers.smoke}.`) : null,
    found.status === "ok" ? null : element("p", { class: found.status === "failed" ? "bad" : "warning" }, `${found.status}: ${DATA.statuses[found.status]}. ${found.reason}`),
    about(hash, found), flagList("Flags", found.flags), epsilonTable(found), informationNote(found), utilityTable(found), attackTable(found), pictures(found),
    commandBlock(found), ledgerTable(found), auditTable("Audits of this release", found.audits), details(found),
  ];
}
function about(hash, found) {
  const row = DATA.datasets.find((dataset) => dataset.name === found.dataset).rows.find((one) => one.runs.includes(hash));
  const seeds = row ? row.runs.flatMap((other, index) => [other === hash ? element("strong", {}, row.seeds[index]) : runLink(other, row.seeds[index]), " "]) : [];
  return facts([["variant", `${found.variant}: ${DATA.variants[found.variant]}`], ["setting", found.setting || "the defaults of variant and tier"], ["tier", `${found.tier}: ${DATA.tiers[found.tier]}`], ["split", found.split],
    ["teacher → student", `${found.teacher} → ${found.student}`], ["attack", found.attack && `${found.attack} (${found.attack_variant}), which sees ${found.access}`],
    ["seeds of this row", seeds], ["board", element("a", { href: address("board", found.dataset) }, found.dataset)], ["hash", hash]]);
}
function epsilonTable(found) {
  const rows = found.epsilons.map((line) => [line.what, line.epsilon === undefined ? "none" : `${line.what === "audited" ? "≥ " : ""}${number(line.epsilon)}`,
    line.unit ? `${line.unit}: ${DATA.units[line.unit]}` : "", line.delta === undefined ? "" : number(line.delta), line.by]);
  if (!rows.length) return null;
  return section("Epsilon", grid("epsilon", ["", "ε", "protects one", "δ", "by"], rows, [1]), note("Numbers of different units cannot be compared. ∞: nothing can be proved."));
}
function informationNote(found) {
  const { nats, most, why } = found.information;
  if (nats === null) return section("Information", note(`Not known. ${why}.`));
  const allowed = nats === "inf" || most === null ? "" : ` They allow ${most === 1 ? "any accuracy" : `an accuracy of at most ${percent(most, 2)}`}, every class counting the same, to a method that treats class names alike.`;
  return section("Information", element("p", {}, nats === "inf" ? "No bound on what the answers carry." : `All answers together carry at most ${number(nats)} nats about the private data.${allowed}`), note(`${why}.`));
}
function utilityTable(found) {
  const rows = found.utility.map(([label, value, low, high]) => [label, value === null ? "" : percent(value, 2), between(low, high, (one) => (100 * one).toFixed(1))]);
  return rows.length ? section("Accuracy on the test set", grid("accuracy", ["", "accuracy", "95 % interval"], rows, [1, 2])) : null;
}
function attackTable(found) {
  const { targets, rows } = found.measures;
  if (!rows.length || !found.attack) return null;
  const lines = rows.map(([label, share, tip, cells]) => [element("span", { title: tip || null }, label), ...cells.map((one) => measured(one, share))]);
  return section(`Attack ${found.attack}`, grid("attack", [`${found.attack} on`, ...targets], lines, targets.map((_, index) => index + 1)),
    found.alone.map(([label, value]) => note(`${label}: ${value === null ? "none" : number(value)}`)), found.missing.map(([key, reason]) => note(`${key}: ${reason}`)));
}
function measured(found, share) {
  if (found === null || found[0] === null) return "";
  const [value, low, high] = found;
  const interval = between(low, high, (one) => (share ? (100 * one).toFixed(1) : number(one)));
  return [share ? percent(value) : number(value), interval ? element("span", { class: "spreads" }, ` ${interval}`) : ""];
}
function commandBlock(found) {
  const parts = found.command.split(/ (?=--)/).flatMap((part) => [" ", element("span", { class: "option" }, part)]).slice(1);
  const code = element("pre", { class: "command", id: "command" }, parts);
  const copy = element("button", { type: "button", on: { click: () => copied(code, copy) } }, "copy");
  return section("Reproduce it", code, copy, element("ul", { class: "plain note" }, found.notes.map((line) => element("li", {}, line))));
}
function copied(code, button) {
  getSelection().selectAllChildren(code);
  const done = navigator.clipboard ? navigator.clipboard.writeText(code.textContent) : Promise.reject(new Error("no clipboard"));
  done.then(() => { button.textContent = "copied"; }, () => { button.textContent = "selected; copy it"; });
}
function ledgerTable(found) {
  if (!found.ledger.length) return null;
  const rows = found.ledger.map(([who, why, event, count]) => [who, why, event, count.toLocaleString("en")]);
  return section("Ledger: every use of the private data", grid("ledger", ["unit", "what was taken", "event", "times"], rows, [3]),
    found.noise === "os" ? note("The noise came from the system's entropy.")
      : note("The noise came from the recorded seed: whoever reads it can subtract it. A deployment uses ", element("code", { class: "option" }, "--noise os"), "."),
    found.solved.length ? note("Solved for the budget: ", found.solved.map(([key, value]) => `${key} ${value === null ? "none" : number(value)}`).join(", ")) : null);
}
function pictures(found) {
  if (!found.pictures) return null;
  const shown = found.pictures.map(([name, key]) => picture(name, key, `${name} of ${found.method}, seed ${found.seed}`));
  return section("Pictures", element("div", { class: "pictures" }, shown));
}
function picture(name, key, alt, link) {
  return element("figure", {}, element("figcaption", {}, link || name), element("img", { src: DATA.pictures[key], alt }));
}
function details(found) {
  const spec = structuredClone(found.spec);
  if (spec.attack && spec.attack.target === "release") spec.attack.target = spec.release;
  const folded = (title, data) => element("details", {}, element("summary", {}, title), element("pre", {}, JSON.stringify(data, null, 1)));
  const git = found.provenance.git || {};
  const spent = Object.values(found.provenance.seconds || {}).reduce((sum, one) => sum + one, 0);
  const code = git.commit ? `${git.commit}${git.clean ? "" : " with changes that were not committed"}` : "not in a git checkout";
  return section("Spec and provenance", facts([["code", code], ["device", found.provenance.device], ["precision", found.provenance.precision], ["time, all steps", spent ? seconds(spent) : ""]]),
    folded("spec", spec), folded("provenance", found.provenance));
}

/* Pages. */
const address = (kind, name) => `#${kind}-${encodeURIComponent(name)}`;
function overview() {
  const rows = DATA.datasets.map((dataset) => [element("a", { href: address("board", dataset.name) }, dataset.name), String(dataset.runs), String(dataset.rows.length),
    String(new Set(dataset.rows.filter((row) => row.kind !== "reference").map((row) => row.method)).size),
    [element("a", { href: address("charts", dataset.name) }, "charts"), " ", gallery(dataset.name).length ? element("a", { href: address("images", dataset.name) }, "images") : ""],
    element("span", { class: "list" }, [...new Set(dataset.rows.map((row) => row.attack).filter(Boolean))].sort().join(", "))]);
  const units = Object.entries(DATA.units).filter(([name]) => name !== "none");
  return [heading("Private students: accuracy, epsilon, attacks"),
    element("p", {}, "A teacher trained on private data is distilled into a student that is to be released. Each run records the student's accuracy, what its paper claims, what can be proved, and how far attacks get."),
    grid("data sets", ["data set", "runs", "rows", "methods", "", "attacks"], rows, [1, 2, 3]),
    DATA.datasets.map(recommended),
    section("How to read it", element("ul", { class: "plain" },
      element("li", {}, element("strong", {}, "Three epsilons. "), "Claimed is what the method's paper says at these settings. Accounted is what can be proved from every use of the private data. Audited is a lower bound that an attack measured."),
      element("li", {}, element("strong", {}, "Information. "), "At most so many nats all answers together can carry about the private data. It protects no one; it says what accuracy is possible at all."),
      element("li", {}, element("strong", {}, "Units. "), "An epsilon protects one of something, and epsilons of different units are never ranked together."),
      element("li", {}, element("strong", {}, "Power. "), "An attack must succeed on the undefended teacher and must not on a network with random weights. Otherwise its row is inconclusive, never protected."),
      element("li", {}, element("strong", {}, "Tiers. "), Object.entries(DATA.tiers).map(([name, line]) => `${name}: ${line}`).join("; "), "."))),
    section("Units", facts(units)), note(`Made by bench report, dp-distill-bench ${DATA.version}.`)];
}
function recommended(dataset) {
  if (!dataset.best.length) return null;
  const seen = new Set();
  const rows = dataset.best.flatMap((one) => {
    const place = [`per ${one.unit}`, one.tier, one.split === "iid" ? "" : one.split].filter(Boolean).join(", ");
    const first = !seen.has(place) && seen.add(place);
    const row = [runLink(one.run, one.name), percent(one.accuracy), number(one.epsilon),
      one.attack ? [`${one.attack} `, percent(one.success), element("span", { class: "spreads" }, ` (teacher ${percent(one.on_teacher)})`)] : "not attacked", String(one.seeds)];
    return first ? [element("span", { title: DATA.units[one.unit] }, place), row] : [row];
  });
  return section(`${dataset.name}: most accurate with a proved epsilon of at most ${DATA.proved}`,
    grid(`best of ${dataset.name}`, ["release", "accuracy", "ε proved", "strongest attack", "seeds"], rows, [1, 2, 4]));
}
function gallery(name) {
  const found = [];
  for (const hash of Object.keys(DATA.runs).sort()) {
    const one = DATA.runs[hash];
    if (one.dataset === name) for (const [kind, key] of one.pictures || []) found.push({ hash, kind, key, run: one });
  }
  return found.sort((a, b) => compared(a.run.method, b.run.method) || compared(a.run.setting, b.run.setting) || a.run.seed - b.run.seed);
}
function images(dataset) {
  const found = gallery(dataset.name);
  const kinds = [...new Set(found.map((one) => one.kind))].sort();
  const parts = kinds.map((kind) => section(kind, element("div", { class: "pictures" }, found.filter((one) => one.kind === kind).map((one) => {
    const label = `${one.run.method} (${one.run.variant})${one.run.setting ? `, ${one.run.setting}` : ""}, seed ${one.run.seed}${one.run.attack ? `, ${one.run.attack}` : ""}${one.run.tier === "smoke" ? " (smoke)" : ""}`;
    return picture(kind, one.key, `${kind}: ${label}`, runLink(one.hash, label));
  }))));
  return [heading(`${dataset.name}: images`), found.length ? note("Follow a caption to its run.") : note("No pictures: give the runs' directories with --runs."), parts];
}
const REPORTED = { paper: "text", table: "text", dataset: "text", method: "text", kind: "text", unit_claimed: "text", epsilon: "number", delta: "number", metric: "text", value: "number", setting: "text", note: "text", issue: "text" };
function reported() {
  const now = state("\u0000reported");
  const columns = Object.entries(REPORTED).map(([key, kind]) => ({ key, kind, label: key.replace("_", " "), within: { epsilon: ["unit_claimed"], value: ["metric"] }[key] || [] }));
  const write = (column, row) => element("td", { class: isNumber(column) ? "number" : ["setting", "note"].includes(column.key) ? "wide long" : null }, row[column.key] === undefined ? "" : number(row[column.key]));
  const rows = DATA.reported.map((row) => Object.fromEntries(columns.map(({ key, kind }) => [key, kind === "number" && row[key] !== "" && Number.isFinite(Number(row[key])) ? Number(row[key]) : row[key] || undefined])));
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
function bringOut(method) {
  for (const part of CHARTS.querySelectorAll(".panel [data-method]")) part.classList.toggle("dim", method !== null && part.dataset.method !== method);
  for (const button of CHARTS.querySelectorAll(".legend button")) button.setAttribute("aria-pressed", String(button.dataset.method === method));
}

/* Routes: #board-NAME, #charts-NAME, #images-NAME, #run-HASH, #reported. */
function route() {
  let place;
  try { place = decodeURIComponent(location.hash.slice(1)); } catch { place = ""; }
  if (place === "main") return;
  const dash = place.indexOf("-");
  const [kind, name] = dash < 0 ? [place, ""] : [place.slice(0, dash), place.slice(dash + 1)];
  const dataset = DATA.datasets.find((one) => one.name === name);
  if (dataset) chosen = dataset.name;
  else if (kind === "run" && DATA.runs[name]) chosen = DATA.runs[name].dataset;
  const page = { board, charts: () => [], images }[kind];
  const content = page && dataset ? page(dataset) : kind === "run" ? run(name) : kind === "reported" ? reported() : overview();
  VIEW.replaceChildren(...content.flat().filter(Boolean));
  CHARTS.hidden = !(kind === "charts" && dataset);
  for (const part of CHARTS.querySelectorAll(".charts")) part.hidden = part.dataset.dataset !== name;
  current = location.hash;
  pages(page && dataset ? kind : kind === "reported" ? kind : "");
  const title = [VIEW, CHARTS].map((part) => part.querySelector("div:not([hidden]) > h1, :scope > h1")).find(Boolean);
  document.title = `${title ? title.textContent : "report"} – dp-distill-bench`;
  if (title && place) title.focus({ preventScroll: true });
  scrollTo(0, kind === "run" ? 0 : SCROLLED.get(current) || 0);
}
function pages(kind) {
  const links = [["board", "Board"], ["charts", "Charts"], ["images", "Images"]].map(([name, label]) =>
    element("a", { href: address(name, chosen), "aria-current": name === kind ? "page" : null }, label));
  if (DATA.reported.length) links.push(element("a", { href: "#reported", "aria-current": kind === "reported" ? "page" : null }, "Papers"));
  document.getElementById("pages").replaceChildren(...links);
  SELECT.value = chosen;
}
SELECT.append(...DATA.datasets.map((dataset) => element("option", { value: dataset.name }, dataset.name)));
SELECT.addEventListener("change", () => {
  const kind = location.hash.slice(1).split("-")[0];
  location.hash = address(["charts", "images"].includes(kind) ? kind : "board", SELECT.value);
});
CHARTS.addEventListener("click", (event) => {
  const button = event.target.closest(".legend button");
  if (button) bringOut(button.getAttribute("aria-pressed") === "true" ? null : button.dataset.method);
});
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); document.getElementById("main").focus(); });
addEventListener("scroll", () => SCROLLED.set(current, scrollY), { passive: true });
addEventListener("hashchange", route);
route();

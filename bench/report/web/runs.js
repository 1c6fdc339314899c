"use strict";
/* Pages of one run, and of two next to each other. */
const SHOWN = 5;
function auditTable(title, audits) {
  if (!audits.length) return null;
  const names = { student: "student, released", teacher: "teacher, undefended", null: "null run, no canary" };
  const setting = (audit) => [audit.setting, audit.apart].filter(Boolean).join(", ");
  const named = (audit) => `${audit.dataset}: ${audit.method}${setting(audit) ? ` (${setting(audit)})` : ""}`;
  const ordered = [...audits].sort((a, b) => compared(named(a), named(b)));
  const lines = ordered.flatMap((audit) => [element("span", {}, sentence(named(audit))), ...audit.lines.map(([name, correct, guesses, bound, accuracy]) =>
    [names[name] || name, `${correct} of ${guesses}`, number(bound), number(audit.ceiling), percent(accuracy)])]);
  const verdicts = ordered.flatMap((audit) => [element("li", {}, element("strong", {}, `${named(audit)}: ${audit.verdict}. `), audit.reasons.join("; "), audit.powerful ? "" : "; the teacher's bound is 0, so the audit shows nothing", ".")]);
  const told = [grid("audits", ["model", "right guesses", "ε at least", "could show", "accuracy"], lines, [1, 2, 3, 4]), element("ul", { class: "plain" }, verdicts)];
  return section(title, note("Mislabelled canaries, half of them in the teacher's data; an attack guesses from the student which. The bound is epsilon's, per record, at 95 %. Not refuted is not verified."),
    audits.length > SHOWN ? element("details", {}, element("summary", {}, counted(audits.length, "audit", "audits")), told) : told);
}

/* A run. */
async function runOf(hash) {
  if (!/^[0-9a-f]{16}$/.test(hash)) return undefined;
  const shard = `runs-${hash.slice(0, DATA.shard)}`;
  return DATA.shards.includes(shard) ? (await part(shard))[hash] : undefined;
}
const noRun = (hash) => [heading("No such run"), note(`This report holds no run ${hash}.`)];
async function run(hash) {
  const found = await runOf(hash);
  if (!found) return noRun(hash);
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
  const seeds = found.seeds.flatMap(([seed, other]) => [other === hash ? element("strong", {}, seed) : runLink(other, seed), " "]);
  return facts([["method", methodLink(found.method)], ["variant", `${found.variant}: ${DATA.variants[found.variant]}`], ["setting", found.setting || "the defaults of variant and tier"], ["tier", `${found.tier}: ${DATA.tiers[found.tier]}`], ["split", found.split],
    ["teacher → student", `${found.teacher} → ${found.student}`], ["attack", found.attack && `${found.attack} (${found.attack_variant}), which sees ${found.access}`],
    ["seeds of this row", seeds], ["board", element("a", { href: address("board", found.dataset) }, found.dataset)], ["compare", element("a", { href: `#compare-${hash}` }, "with another run")], ["hash", hash]]);
}
function epsilonTable(found) {
  const rows = found.epsilons.map((line) => [line.what, line.epsilon === null ? "none" : `${line.what === "audited" ? "≥ " : ""}${number(line.epsilon)}`,
    line.delta === null ? "" : number(line.delta), line.unit ? `${line.unit}: ${DATA.units[line.unit]}` : "", element("span", { class: "words" }, line.by)]);
  if (!rows.length) return null;
  return section("Epsilon", grid("epsilon", ["", "ε", "δ", "protects one", "by"], rows, [1, 2], "fit stack", [3, 4]), note("Numbers of different units cannot be compared. ∞: nothing can be proved."));
}
function informationNote(found) {
  const { nats, most, why } = found.information;
  if (nats === null) return section("Information", note(`Not known: ${why}.`));
  const allowed = nats === "inf" || most === null ? "" : ` They allow ${most === 1 ? "any accuracy" : `an accuracy of at most ${percent(most, 2)}`}, every class counting the same, to a method that treats class names alike.`;
  return section("Information", element("p", {}, nats === "inf" ? "No bound on what the answers carry." : `All answers together carry at most ${number(nats)} nats about the private data.${allowed}`), note(`${why}.`));
}
function utilityTable(found) {
  const rows = found.utility.map(([label, value, low, high]) => [label, value === null ? "" : percent(value, 2), between(low, high, (one) => hundredths(one))]);
  return rows.length ? section("Accuracy on the test set", grid("accuracy", ["", "accuracy", "95 % interval"], rows, [1, 2])) : null;
}
function attackTable(found) {
  const { targets, rows } = found.measures;
  if (!rows.length || !found.attack) return null;
  const lines = rows.map(([label, share, tip, cells]) => [element("span", { title: tip || null }, label), ...cells.map((one) => measured(one, share))]);
  return section(`Attack ${found.attack}`, grid("attack", [`${found.attack} on`, ...targets], lines, targets.map((_, index) => index + 1)),
    found.others.map(([label, value]) => note(`${label}: ${value === null ? "none" : number(value)}`)), found.missing.map(([key, reason]) => note(`${key}: ${reason}`)));
}
function measured(found, share) {
  if (found === null || found[0] === null) return "";
  const [value, low, high] = found;
  const interval = between(low, high, share ? (one) => hundredths(one) : number);
  return [share ? percent(value) : number(value), interval ? element("span", { class: "spreads" }, ` ${interval}`) : ""];
}
function commandBlock(found) {
  const shown = command(found.command);
  shown.id = "command";
  const copy = element("button", { type: "button", on: { click: () => copied(shown, copy) } }, "copy");
  return section("Reproduce it", shown, copy, element("ul", { class: "plain note" }, found.notes.map((line) => element("li", {}, line))));
}
function copied(code, button) {
  getSelection().selectAllChildren(code);
  const done = navigator.clipboard ? navigator.clipboard.writeText(code.textContent) : Promise.reject(new Error("no clipboard"));
  done.then(() => { button.textContent = "copied"; }, () => { button.textContent = "selected; copy it"; });
}
function ledgerTable(found) {
  if (!found.ledger.length) return null;
  const rows = found.ledger.map(([who, why, event, count]) => [who, why, event, count.toLocaleString("en")]);
  return section("Ledger: every use of the private data", grid("ledger", ["unit", "use", "event", "times"], rows, [3]),
    found.noise === "os" ? note("The noise came from the system's entropy.")
      : note("The noise came from the recorded seed: a reader of the seed can subtract the noise. A deployment uses ", element("code", { class: "option" }, "--noise os"), "."),
    found.solved.length ? note("Solved for the budget: ", found.solved.map(([key, value]) => `${key} ${value === null ? "none" : number(value)}`).join(", ")) : null);
}
function pictures(found) {
  if (!found.pictures) return null;
  const shown = found.pictures.map(([name, key]) => picture(name, key, `${name} of ${found.method}, seed ${found.seed}`));
  return section("Pictures", element("div", { class: "pictures" }, shown));
}
function details(found) {
  const spec = structuredClone(found.spec);
  if (spec.attack && spec.attack.target === "release") spec.attack.target = spec.release;
  const folded = (title, data) => element("details", {}, element("summary", {}, title), element("pre", {}, JSON.stringify(data, null, 1)));
  const git = found.provenance.git || {};
  const spent = Object.values(found.provenance.seconds || {}).reduce((sum, one) => sum + one, 0);
  const code = git.commit ? `${git.commit}${git.clean ? "" : " with changes that were not committed"}` : "not in a git checkout";
  return section("Spec and provenance", facts([["code", code], ["device", found.provenance.device], ["precision", found.provenance.precision], ["time, all steps", spent ? seconds(spent) : ""], ["steps from elsewhere", Object.keys(found.provenance.steps || {}).join(", ")]]),
    folded("spec", spec), folded("provenance", found.provenance));
}


/* Two runs next to each other: #compare, #compare-HASH, #compare-HASH-HASH. */
async function compare(hashes) {
  const [first, second] = await Promise.all(hashes.map(runOf));
  const names = await part("names");
  const pickers = element("div", { class: "two" }, [0, 1].map((index) => runPicker(names, hashes, index)));
  const parts = [heading("Compare two runs"), note("Choose two runs. Numbers of different data sets, tiers or splits say nothing about each other, nor do epsilons of different units."), pickers];
  for (const [hash, found] of [[hashes[0], first], [hashes[1], second]]) if (hash && !found) parts.push(element("p", { class: "bad" }, `This report holds no run ${hash}.`));
  return first && second ? [...parts, ...comparison(hashes, first, second)] : parts;
}
const runName = ([, dataset, method, setting, tier, seed, attack, accuracy, told]) =>
  [dataset, method, attack, `seed ${seed}`, setting, told, tier, typeof accuracy === "number" ? percent(accuracy) : ""].filter(Boolean).join(" · ");
const LISTED = 100;
function runPicker(names, hashes, index) {
  const label = index ? "second run" : "first run";
  const list = element("select", { size: "7", "aria-label": label, on: { change: (event) => {
    const chosen = [...hashes];
    chosen[index] = event.target.value;
    if (!chosen[0]) chosen[0] = chosen[1];
    location.hash = `#compare-${chosen.join("-")}`;
  } } });
  const count = element("span", { class: "note", role: "status" });
  const fill = (typed) => {
    const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
    const found = names.filter((one) => words.every((word) => `${runName(one)} ${one[0]}`.toLowerCase().includes(word)));
    const here = names.find((one) => one[0] === hashes[index]);
    const shown = [...(here ? [here] : []), ...found.filter((one) => one !== here)].slice(0, LISTED);
    list.replaceChildren(...shown.map((one) => element("option", { value: one[0], selected: one === here, title: runName(one) }, runName(one))));
    count.textContent = `${counted(found.length, "run", "runs")}${found.length > LISTED ? `, the first ${LISTED} listed` : ""}`;
  };
  fill("");
  const input = element("input", { type: "search", placeholder: "data set, method, setting, attack, hash …", on: { input: (event) => fill(event.target.value) } });
  return element("fieldset", {}, element("legend", {}, label), element("label", {}, "search", input), list, count);
}
function comparison(hashes, first, second) {
  const differs = [["data set", "dataset"], ["tier", "tier"], ["split", "split"]].filter(([, key]) => first[key] !== second[key]);
  const warning = differs.length ? element("p", { class: "warning" }, `These runs differ in ${differs.map(([label]) => label).join(", ")}: their numbers cannot be ranked.`) : null;
  const heads = () => ["", ...[first, second].map((one, index) => runLink(hashes[index], `${one.method}, seed ${one.seed}`))];
  const names = [["method", (one) => methodLink(one.method)], ["variant", (one) => one.variant], ["setting", (one) => one.setting || "defaults"], ["data set", (one) => one.dataset], ["tier", (one) => one.tier],
    ["attack", (one) => one.attack || "none"], ["status", (one) => one.status], ["flags", (one) => element("span", { class: "list" }, one.flags.map(flagChip))], ["device", (one) => one.provenance.device || ""], ["time, all steps", (one) => spentBy(one)]];
  const whole = (one) => element("span", { class: "list" }, one);
  return [warning, section("Who they are", grid("two runs", heads(), names.map(([label, shown]) => [label, whole(shown(first)), whole(shown(second))]))),
    section("Numbers", numbersBeside(heads, first, second)), section("Epsilon", epsilonsBeside(heads, first, second)),
    section("What differs in their specs", specsBeside(heads, first, second))];
}
const spentBy = (found) => {
  const spent = Object.values(found.provenance.seconds || {}).reduce((sum, one) => sum + one, 0);
  return spent ? seconds(spent) : "";
};
function numbersBeside(heads, first, second) {
  const all = (found) => new Map([
    ...found.utility.map(([label, value, low, high]) => [`accuracy: ${label}`, [[value, low, high], true]]),
    ...found.measures.rows.flatMap(([label, share, , cells]) => cells.map((one, index) => [`${label}: ${found.measures.targets[index]}`, [one, share]])),
    ...found.others.map(([label, value]) => [label, [[value], false]]),
    ["information, nats at most", [[found.information.nats], false]],
  ]);
  const [left, right] = [all(first), all(second)];
  const rows = [...new Set([...left.keys(), ...right.keys()])].map((label) => {
    const [[a, share], [b]] = [left.get(label) || [null, (right.get(label) || [])[1]], right.get(label) || [null]];
    const both = a && b && typeof a[0] === "number" && typeof b[0] === "number";
    const apart = both && a.length === 3 && a[1] !== null && b[1] !== null && (a[2] < b[1] || b[2] < a[1]);
    const difference = both ? (share ? `${points(b[0] - a[0])} points` : number(b[0] - a[0])) : "";
    const row = [label, measured(a, share), measured(b, share), difference, apart ? "intervals apart" : ""];
    return Object.assign(row, { equal: JSON.stringify(a) === JSON.stringify(b) });
  }).filter((row) => row[1] !== "" || row[2] !== "");
  const lone = (row) => !row.equal && (row[1] === "" || row[2] === "");
  const [told, same, one] = [rows.filter((row) => !row.equal && !lone(row)), rows.filter((row) => row.equal), rows.filter(lone)];
  const table = (name, lines) => grid(name, [...heads(), "second less first", ""], lines, [1, 2, 3]);
  return [told.length ? table("numbers of two runs", told) : note(one.length ? "What both have is the same." : "All numbers are the same."),
    one.length ? element("details", {}, element("summary", {}, `${one.length} ${one.length === 1 ? "number is" : "numbers are"} of only one of them`), table("numbers of one run", one)) : null,
    same.length ? element("details", {}, element("summary", {}, `${same.length} ${same.length === 1 ? "number is" : "numbers are"} the same`), table("numbers that are the same", same)) : null];
}
function epsilonsBeside(heads, first, second) {
  const all = (found) => new Map(found.epsilons.map((line) => [`${line.what}${line.unit ? ` per ${line.unit}` : ""}`, line.epsilon === null ? "none" : number(line.epsilon)]));
  const [left, right] = [all(first), all(second)];
  const rows = [...new Set([...left.keys(), ...right.keys()])].map((label) => [label, left.get(label) || "", right.get(label) || ""]);
  return rows.length ? grid("epsilons of two runs", heads(), rows, [1, 2]) : null;
}
function specsBeside(heads, first, second) {
  const flat = (found, prefix) => Object.entries(found).flatMap(([key, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value) ? flat(value, `${prefix}${key}.`) : [[`${prefix}${key}`, JSON.stringify(value)]]);
  const [left, right] = [new Map(flat(first.spec, "")), new Map(flat(second.spec, ""))];
  const rows = [...new Set([...left.keys(), ...right.keys()])].filter((key) => left.get(key) !== right.get(key)).map((key) => [key, left.get(key) || "–", right.get(key) || "–"].map((one, index) => index ? element("span", { class: "list" }, one) : one));
  return rows.length ? grid("differences of specs", heads(), rows) : note("Nothing: they are the same experiment.");
}

"use strict";
/* All methods, and a page of each. */
function methods() {
  const now = state("\u0000methods");
  const box = element("div", {});
  const redraw = () => {
    const words = now.words.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = DATA.methods.filter((one) => matches(one, words));
    const groups = [["methods", "The papers' methods"], ["baselines", "Baselines"], ...[...new Set(kept.map((one) => one.folder))].filter((one) => !["methods", "baselines"].includes(one)).map((one) => [one, one])];
    box.replaceChildren(...groups.map(([folder, title]) => {
      const rows = kept.filter((one) => one.folder === folder).map((one) => [methodLink(one.name), element("span", { class: "list" }, one.summary), one.runs ? number(one.runs) : "none"]);
      return rows.length ? section(title, grid(title, ["method", "what it is", "runs"], rows, [2], "fit stack", [1])) : null;
    }).filter(Boolean));
  };
  redraw();
  const input = element("input", { type: "search", value: now.words, placeholder: "name or word", on: { input: (event) => { now.words = event.target.value; redraw(); } } });
  return [heading("Methods"), element("div", { class: "controls" }, element("label", {}, "search", input)), box];
}
async function method(name) {
  const known = DATA.methods.find((one) => one.name === name);
  if (!known) return [heading("No such method"), note(`This report knows no method ${name}.`)];
  const found = await part(`method-${known.file}`);
  const usual = found.variants[0];
  return [heading(found.name), element("p", {}, found.summary),
    usual ? facts([["reference", usual.reference], ["folder", found.folder], ["needs", usual.needs.join(", ")], ["variants", found.variants.map((one) => one.variant).join(", ")], ["version", String(usual.version)]]) : null,
    promise(found, usual), ranking(found), measuredTable(found), attacksTable(found), auditTable("Audits", found.audits),
    SECTIONS.map((one) => one.ofMethod(found)),
    reproduce(found), found.variants.map(aboutVariant)];
}
function promise(found, usual) {
  const claims = found.claims.map((one) => element("li", {}, `${one.source}, per ${one.unit} (${DATA.units[one.unit]}): ${one.by.join(", ")}; ${counted(one.runs, "run", "runs")}.`, one.dispute ? [" ", element("span", { class: "chip alarm" }, "disputed"), ` Its proof does not cover what the algorithm does: ${one.explanation}.`] : ""));
  return section("Its claims", usual ? element("p", {}, usual.unit === "none" ? "It claims nothing." : `Its claim protects ${DATA.units[usual.unit]}. The account covers every unit in its ledger.`) : null,
    claims.length ? element("ul", { class: "plain" }, claims) : note("No run here claims anything."));
}
function ranking(found) {
  const rows = found.rankings.map((one) => [one.dataset, `${one.tier}, split ${one.split}`, one.unit, percent(one.accuracy), `${one.rank} of ${one.of}`]);
  return rows.length ? section(`Its rank with a proved epsilon of at most ${DATA.proved}`, grid("ranks", ["data set", "tier", "protects one", "accuracy", "rank among methods"], rows, [3, 4]), note("Each method by its most accurate release; claimed epsilons are ignored.")) : null;
}
const settingOf = (line) => [line.variant, line.setting, line.apart].filter(Boolean).join(", ");
function measuredTable(found) {
  if (!found.releases.length) return note("No run of it is in this report.");
  const ordered = [...found.releases].sort((a, b) => compared(a.dataset, b.dataset) || DATA.order.tiers.indexOf(a.tier) - DATA.order.tiers.indexOf(b.tier) || compared(usualFirst(a.split), usualFirst(b.split)) || Boolean(a.older) - Boolean(b.older) || (b.accuracy || 0) - (a.accuracy || 0));
  const seen = new Set();
  const rows = ordered.flatMap((line) => {
    const place = `${line.dataset}, tier ${line.tier}, split ${line.split}`;
    const epsilon = (value, unit) => (value === null ? "" : [number(value), unit ? element("span", { class: "unit" }, `per ${unit}`) : ""]);
    const row = [element("span", { class: "words" }, runLink(line.runs[0], settingOf(line)), line.older ? ", older version" : ""), line.accuracy === null ? "failed" : [percent(line.accuracy), spreadOf(line)],
      epsilon(line.claimed, line.claim_unit), epsilon(line.epsilon, line.unit), line.audited === null ? "" : `≥ ${number(line.audited)}`, number(line.information), line.strongest ? element("span", { class: "words" }, line.strongest) : "", line.seconds === null ? "" : seconds(line.seconds), flagFold(line.flags)];
    return seen.has(place) ? [row] : (seen.add(place), [element("span", {}, place), row]);
  });
  const flags = [...new Set(found.releases.flatMap((line) => line.flags))].sort();
  return [section("Measurements", fullGrid("releases", ["setting", "accuracy", "ε claimed", "ε accounted", "ε audited", "information, nats ≤", "strongest inversion", "time", "flags"], rows, [1, 2, 3, 4, 5, 7])), flagList("Meaning of the flags", flags)];
}
function attacksTable(found) {
  const lines = found.releases.flatMap((line) => line.attacks.map(([words, run]) => [element("span", { class: "list" }, settingOf(line)), line.dataset, element("span", { class: "list" }, runLink(run, words))]));
  return lines.length ? section("Attacks on it", grid("attacks", ["setting", "data set", "on the student (on the teacher)"], lines)) : null;
}
function reproduce(found) {
  if (!found.variants.length) return null;
  const other = found.variants.length > 1 ? [command(`bench run --method ${found.name} --variant ${found.variants[1].variant}`)] : [];
  return section("Run it", command(`bench run --method ${found.name}`), other, note("All options: ", code(`bench show ${found.name}`), ". Every run's own page has the command that made it."));
}
function aboutVariant(one) {
  const departures = one.departures.map(([what, why, effect]) => element("li", {}, element("strong", {}, `${what}. `), `Why: ${why}. `, effect ? `Effect: ${effect}.` : "Its effect was not measured."));
  return element("details", {}, element("summary", {}, `Variant ${one.variant}: ${one.variant === "working" ? "one that learns; every change from the paper is below" : DATA.variants[one.variant]}`), element("pre", { class: "doc" }, one.doc),
    departures.length ? [element("h3", {}, "Changes from the paper"), element("ol", { class: "plain" }, departures)] : null);
}

"use strict";
/* The front page. */
function overview() {
  const rows = DATA.datasets.map((dataset) => [link("board", dataset.name), number(dataset.runs), number(dataset.rows), String(dataset.methods),
    [link("charts", dataset.name, "charts"), " ", dataset.pictures ? link("images", dataset.name, "images") : ""],
    dataset.attacks.length ? element("span", { class: "list" }, dataset.attacks.join(", ")) : "no attack"]);
  return [heading("Private students: accuracy, epsilon, attacks"),
    element("p", {}, "A teacher trained on private data is distilled into a student that is to be released. Each run records the student's accuracy, what its paper claims, what can be proved, and how far attacks get."),
    element("ul", { class: "doors" },
      door("#choose", "What should I release?", "By a proved epsilon, a unit and an accuracy."),
      door("#methods", "Methods", `${DATA.methods.length}: what each is, promises, costs and withstands.`),
      door("#compare", "Compare two runs", `Any two of ${number(DATA.runs)}.`), SECTIONS.map((one) => one.door())),
    section("Boards", grid("data sets", ["data set", "runs", "rows", "methods", "", "attacks"], rows, [1, 2, 3], "fit stack", [5])),
    DATA.datasets.map(recommended),
    section("How to read it", element("ul", { class: "plain" },
      element("li", {}, element("strong", {}, "Three epsilons. "), "Claimed is what the method's paper says at these settings. Accounted is computed from every use of the private data. Audited is a lower bound that an attack measured."),
      element("li", {}, element("strong", {}, "Information. "), "An upper bound, in nats, on what all responses together carry about the private data. It is not a protection; it bounds the possible accuracy."),
      element("li", {}, element("strong", {}, "Units. "), "An epsilon protects one of something, and epsilons of different units are never ranked together."),
      element("li", {}, element("strong", {}, "Power. "), "An attack must succeed on the undefended teacher and must not on a network with random weights. Otherwise its row is inconclusive, never protected."),
      element("li", {}, element("strong", {}, "Attacks. "), "An inversion attack's number is the share of its images that an independent network takes for their class, or a judge of faces for the person; next to it that of public images chosen by the same labels, and that on the undefended teacher. A membership attack's is its AUC: 0.5 is a coin."),
      element("li", {}, element("strong", {}, "Splits. "), "Which images are private and which the attacker has. iid: drawn from one set; full: all of it is private, the attacker has another set; few: 300 private records; canaries: some labels are wrong; identity: the attacker has other people; disjoint: other classes."),
      element("li", {}, element("strong", {}, "Tiers. "), DATA.order.tiers.map((name) => `${name}: ${DATA.tiers[name]}`).join("; "), "."))),
    section("Units", facts(DATA.order.units.filter((name) => name !== "none").map((name) => [name, DATA.units[name]]))), note(`Made by bench report, dp-distill-bench ${DATA.version}.`)];
}
const door = (href, name, told) => element("li", {}, element("a", { href }, name), element("span", { class: "note" }, told));
function comparedWith(one) {
  const known = [["public images", one.public], ["teacher", one.on_teacher]].filter(([, share]) => share !== null);
  return known.length ? ` (${known.map(([name, share]) => `${name} ${percent(share)}`).join(", ")})` : "";
}
/* What reconstructs most and what tells members best, each by an attack that proved its power. */
function strongest(one) {
  if (!one.attack && !one.membership) return one.attacks ? `${one.attacks}, none with proven power` : "not attacked";
  const inverted = one.attack ? [`${one.attack} `, percent(one.success), element("span", { class: "spreads" }, comparedWith(one))] : [];
  if (!one.membership) return inverted;
  const [attack, auc, teacher] = one.membership;
  const compared = teacher === null ? "" : ` (teacher ${teacher.toFixed(2)})`;
  return [...inverted, inverted.length ? ", " : "", `${attack} AUC ${auc.toFixed(2)}`, element("span", { class: "spreads" }, compared)];
}
function recommended(dataset) {
  if (!dataset.best.length) return null;
  const seen = new Set();
  const rows = dataset.best.flatMap((one) => {
    const place = [`per ${one.unit}`, one.tier, one.split === "iid" ? "" : one.split].filter(Boolean).join(", ");
    const first = !seen.has(place) && seen.add(place);
    const row = [element("span", { class: "words" }, runLink(one.run, one.name)), percent(one.accuracy), number(one.epsilon),
      strongest(one), String(one.seeds)];
    return first ? [element("span", { title: DATA.units[one.unit] }, place), row] : [row];
  });
  return section(`${dataset.name}: most accurate with a proved epsilon of at most ${DATA.proved}`,
    grid(`best of ${dataset.name}`, ["release", "accuracy", "ε proved", "strongest attacks", "seeds"], rows, [1, 2, 4]));
}

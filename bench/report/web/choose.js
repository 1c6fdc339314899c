"use strict";
/* "What should I release?": the rules of `bench choose` (bench/boards/selection.py), with sliders. */
const EXACT = 1e-9;
const ALIKE = 1e-3;
const MOST_DELTA = 1e-4;
const UNTRUE = {
  "refuted": "refuted by an audit",
  "account-corrected": "the account of its version was not true",
  "float32-noise": "its noise was drawn in float32, whose tails end: run it again",
};
const BUDGETS = [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100];
const LAST = BUDGETS.length - 1;
const LIMITS = { unit: "example", epsilon: 8, accuracy: 0.9, dataset: "" };

/* Why a release does not meet the limits; "" if it does. A claimed epsilon is shown and never decides. */
function objection(line, limits) {
  const infinite = (epsilon) => (epsilon === Infinity ? "infinite" : number(epsilon));
  const claimed = line.claimed === null ? "nothing claimed" : `claimed ${infinite(size(line.claimed))} per ${line.claim_unit}`;
  if (line.tier === "smoke") return "tier smoke, whose numbers mean nothing";
  if (line.accuracy === null || line.epsilon === null) return "no run of it was finished";
  if (line.older) return line.older;
  if (line.unit !== limits.unit) return `${claimed}, accounted per ${line.unit}, not per ${limits.unit}`;
  for (const [flag, words] of Object.entries(UNTRUE)) if (line.flags.includes(flag)) return `${claimed}, ${words}`;
  if (size(line.epsilon) > limits.epsilon * (1 + EXACT)) return `${claimed}, accounted ${infinite(size(line.epsilon))}`;
  if (line.delta !== null && line.delta > MOST_DELTA * (1 + EXACT)) return `accounted ${number(line.epsilon)} at a δ of ${number(line.delta)}, above ${number(MOST_DELTA)}`;
  if (line.accuracy < limits.accuracy) return `accounted ${number(line.epsilon)}, accuracy ${percent(line.accuracy)} below ${percent(limits.accuracy)}`;
  return "";
}
/* Releases that meet the limits by data set, tier and split, best first; the others with the reason against them. */
function chosen(lines, limits) {
  const taken = new Map();
  const excluded = [];
  for (const line of lines) {
    if (limits.dataset && line.dataset !== limits.dataset) continue;
    const reason = objection(line, limits);
    if (reason) { excluded.push([line, reason]); continue; }
    const place = JSON.stringify([line.dataset, line.tier, line.split]);
    taken.set(place, [...(taken.get(place) || []), line]);
  }
  const order = (a, b) => b.accuracy - a.accuracy || size(a.epsilon) - size(b.epsilon) || (a.name < b.name ? -1 : a.name > b.name ? 1 : 0);
  const places = [...taken.entries()].sort(([a], [b]) => (a < b ? -1 : 1));
  return { taken: places.map(([place, found]) => [JSON.parse(place), [...found].sort(order)]), excluded };
}
/* What comes nearest where nothing meets the limits: all but the delta, or either side; where nothing keeps either, the least epsilon. */
function nearest(excluded, limits) {
  const loose = excluded.map(([line]) => line).filter((line) => !objection({ ...line, delta: 0 }, limits));
  if (loose.length) {
    const [best] = loose.sort((a, b) => a.delta - b.delta || b.accuracy - a.accuracy);
    return [[`at a δ of ${number(best.delta)}, above ${number(MOST_DELTA)}`, best]];
  }
  const sound = excluded.map(([line]) => line).filter((line) => !objection(line, { ...limits, epsilon: Number.MAX_VALUE / 2, accuracy: 0 }));
  const within = sound.filter((line) => size(line.epsilon) <= limits.epsilon * (1 + EXACT));
  const good = sound.filter((line) => line.accuracy >= limits.accuracy);
  const first = (lines, by) => lines.reduce((best, line) => (best === null || by(line) < by(best) ? line : best), null);
  const found = [[`most accurate within ε ${number(limits.epsilon)}`, first(within, (line) => -line.accuracy)],
    [`least ε with an accuracy of ${percent(limits.accuracy, 0)}`, first(good, (line) => size(line.epsilon))]].filter(([, line]) => line);
  return found.length || !sound.length ? found : [["least ε of all", first(sound, (line) => size(line.epsilon))]];
}
async function choose() {
  const lines = await part("choose");
  const view = element("div", {});
  const count = element("p", { class: "note", role: "status" });
  const redraw = () => {
    const found = chosen(lines, LIMITS);
    const many = found.taken.reduce((sum, [, line]) => sum + line.length, 0);
    count.textContent = `${many} ${many === 1 ? "release qualifies" : "releases qualify"}. The guarantee is for ${DATA.units[LIMITS.unit]}.`;
    view.replaceChildren(...answers(found).flat(2).filter(Boolean));
  };
  redraw();
  const units = ["example", "label", "query", "client"].filter((unit) => lines.some((line) => line.unit === unit));
  return [heading("What should I release?"),
    element("p", {}, "Set the epsilon that you must guarantee and the accuracy that the student must reach. Only the epsilon accounted from every use of the private data counts; claimed epsilons are ignored."),
    element("div", { class: "controls sliders" },
      slider("ε proved, at most", LIMITS.epsilon, (x) => BUDGETS[Math.round(x * LAST)], (value) => BUDGETS.indexOf(value) / LAST, number, (value) => { LIMITS.epsilon = value; redraw(); }, 1 / LAST),
      slider("accuracy, at least", LIMITS.accuracy, (x) => x, (value) => value, (value) => percent(value, 0), (value) => { LIMITS.accuracy = value; redraw(); }),
      picker("protects one", units, LIMITS.unit, (value) => { LIMITS.unit = value; redraw(); }, null),
      picker("data set", DATA.datasets.map((one) => one.name), LIMITS.dataset, (value) => { LIMITS.dataset = value; redraw(); })),
    count, view];
}
function slider(label, value, at, place, shown, act, step = 0.01) {
  const output = element("output", {}, shown(value));
  const id = label.replace(/\W+/g, "-");
  const range = element("input", { type: "range", id, min: "0", max: "1", step: String(step), value: String(place(value)), "aria-valuetext": shown(value), on: { input: (event) => {
    const now = Number(at(Number(event.target.value)).toPrecision(2));
    output.textContent = shown(now);
    event.target.setAttribute("aria-valuetext", shown(now));
    act(now);
  } } });
  return element("div", { class: "slider" }, element("div", {}, element("label", { for: id }, `${label}: `), output), range);
}
function answers({ taken, excluded }) {
  const limits = LIMITS;
  const wanted = `a proved ε of at most ${number(limits.epsilon)} per ${limits.unit} and an accuracy of at least ${percent(limits.accuracy, 0)}`;
  const parts = [];
  if (!taken.length) {
    const near = nearest(excluded, limits);
    parts.push(element("p", { class: "warning" }, `Nothing on the boards has ${wanted}.`), near.length ? element("ul", { class: "plain" }, near.map(([label, line]) =>
      element("li", {}, `${label}: `, runLink(line.runs[0], nameOf(line)), ` on ${line.dataset}, ${percent(line.accuracy)} at ε ${number(line.epsilon)}`))) : note(`No release is accounted per ${limits.unit} with a finite and valid ε${["example", "label"].includes(limits.unit) ? "" : "; a release is listed by one unit, and the pages of its runs hold others"}.`));
  }
  for (const [[dataset, tier, split], found] of taken) parts.push(place(dataset, tier, split, found));
  const rows = excluded.map(([line, reason]) => [element("span", { class: "list" }, line.runs.length ? runLink(line.runs[0], nameOf(line)) : nameOf(line)), line.dataset, element("span", { class: "list" }, reason)]);
  if (rows.length) parts.push(element("details", {}, element("summary", {}, `${counted(rows.length, "other", "others")}, and the reason against each`), grid("excluded", ["release", "data set", "reason"], rows, [], "fit stack", [2])));
  return parts;
}
/* As bench.boards.selection.least_epsilon. */
function leastEpsilon(found) {
  const most = Math.min(...found.map((line) => line.epsilon)) * (1 + ALIKE);
  const alike = found.filter((line) => line.epsilon <= most);
  return alike.sort((a, b) => (a.delta || 0) - (b.delta || 0) || b.accuracy - a.accuracy || compared(a.name, b.name))[0];
}
function place(dataset, tier, split, found) {
  const best = found[0];
  const least = LIMITS.accuracy > 0 ? leastEpsilon(found) : best;
  const why = found.length > 1 ? `the most accurate of ${found.length} that qualify` : "the only one that qualifies";
  const others = found.slice(1).map((line) => [element("span", { class: "words" }, runLink(line.runs[0], nameOf(line))), [percent(line.accuracy), spreadOf(line)], number(line.epsilon), line.strongest || "–", timeOf(line), flagFold(line.flags)]);
  return section(`${dataset}, tier ${tier}, split ${split}`,
    element("div", { class: "answer" }, element("p", {}, element("strong", {}, "Take ", runLink(best.runs[0], nameOf(best))), `: ${why}.`,
      least === best ? null : [" Or ", runLink(least.runs[0], nameOf(least)), `: of these the least ε, ${number(least.epsilon)} at a δ of ${number(least.delta)}, with ${percent(least.accuracy)}.`]),
      facts([["accuracy", [percent(best.accuracy), spreadOf(best)]], ["ε proved", `${number(best.epsilon)} per ${best.unit}, δ ${number(best.delta)}, ${best.relation}; one release: every other one of the same records adds to it`],
        ["method", methodLink(best.method)], ["cost", `${timeOf(best)}${best.device ? ` on ${best.device}` : ""}`],
        ["attacks", best.attacks.length ? element("ul", { class: "bare" }, best.attacks.map(([words, run]) => element("li", {}, runLink(run, words)))) : "not attacked"],
        ["audited", best.audited === null ? "no" : `at least ${number(best.audited)} per example`],
        ["risks", best.flags.length ? element("ul", { class: "bare" }, best.flags.map((flag) => element("li", {}, flagChip(flag), " ", sentence(DATA.flags[flag])))) : "no flag"],
        ["not measured", best.missing.join("; ") || "nothing is missing"]])),
    others.length ? [element("h3", {}, "The others that qualify"), grid(`others on ${dataset}`, ["release", "accuracy", "ε proved", "strongest attack", "time", "flags"], others, [1, 2])] : null);
}
/* A release's name, and what distinguishes it from others of that name. */
const nameOf = (line) => [line.name, line.apart].filter(Boolean).join(", ");
const spreadOf = (line) => element("span", { class: "spreads" }, line.std === null ? " (one seed)" : ` ± ${(100 * line.std).toFixed(1)}, ${line.seeds} seeds`);
const timeOf = (line) => (line.seconds === null ? "not recorded" : seconds(line.seconds));

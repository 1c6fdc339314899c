"use strict";
/* Elements, numbers and parts of the data: what every page is made with. */
const REPORT = {};
const PARTS = new Map();
const STATES = new Map();
/* What other rooms add, each { link, routes, door(), ofMethod(page) }; their scripts come before routes.js. */
const SECTIONS = [];

/* A part of the data: a script that sets REPORT[name], loaded when a page first asks. */
function part(name) {
  if (!PARTS.has(name)) {
    PARTS.set(name, new Promise((done, fail) => {
      const script = element("script", { src: `data/${name}.js`, on: {
        load: () => unpacked(REPORT[name]).then((value) => done(REPORT[name] = value), fail),
        error: () => { PARTS.delete(name); fail(new Error(`data/${name}.js could not be loaded; keep index.html and its folders together`)); },
      } });
      document.head.append(script);
    }));
  }
  return PARTS.get(name);
}

/* A long part is base64 text of gzip data. */
async function unpacked(value) {
  if (typeof value !== "string") return value;
  if (typeof DecompressionStream === "undefined") throw new Error("this browser cannot read compressed data; use one of 2023 or later");
  const bytes = Uint8Array.from(atob(value), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

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
/* Charts alone come as markup; whatever a record says in them was escaped when the report was made. */
function drawn(markup, kind) {
  const made = element("div", { class: kind });
  made.innerHTML = markup;
  return made;
}
const heading = (text) => element("h1", { tabindex: "-1" }, text);
const note = (...children) => element("p", { class: "note" }, ...children);
const address = (kind, name) => `#${kind}-${encodeURIComponent(name)}`;
const link = (kind, name, text) => element("a", { href: address(kind, name) }, text || name);
const runLink = (hash, text) => element("a", { href: `#run-${hash}` }, text);
const methodLink = (name, text) => link("method", name, text);
const boxed = (label, table, kind) => element("div", { class: `box ${kind || "fit"}`, role: "region", "aria-label": label, tabindex: "0" }, table);
const code = (text) => element("code", { class: "typed" }, text);
/* A sentence whose options of the command line are not broken. */
const sentence = (text) => text.split(/(--[a-z][\w.-]*(?: [a-z]+)?)/).map((part, index) => (index % 2 ? element("span", { class: "option" }, part) : part));
function section(title, ...content) {
  const kept = content.flat(2).filter(Boolean);
  return kept.length ? element("section", {}, element("h2", {}, title), kept) : null;
}
function facts(pairs) {
  const lines = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return element("dl", { class: "facts" }, lines.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}
function picker(label, values, value, act, all) {
  const options = (all === null ? values : ["", ...values]).map((one) => element("option", { value: one, selected: one === value }, one || all || "all"));
  return element("label", {}, label, element("select", { on: { change: (event) => act(event.target.value) } }, options));
}
function command(text) {
  const parts = text.split(/ (?=--)/).flatMap((one) => [" ", element("span", { class: "option" }, one)]).slice(1);
  return element("pre", { class: "command" }, parts);
}

/* Numbers as people read them. */
/* Digits with a minus sign, and nothing of a nought that was negative before it was rounded. */
const signed = (text) => (/^-[0.]*$/.test(text) ? text.slice(1) : text.replace("-", "−"));
const hundredths = (value, digits) => signed((100 * value).toFixed(digits === undefined ? 1 : digits));
const percent = (value, digits) => `${hundredths(value, digits)} %`;
function points(value) {
  const shown = Math.abs(100 * value).toFixed(1);
  return Number(shown) === 0 ? shown : `${value < 0 ? "−" : "+"}${shown}`;
}
function number(value) {
  if (value === null || value === undefined) return "";
  if (value === "inf" || value === Infinity) return "∞";
  if (typeof value !== "number") return String(value);
  if (value < 0) return `−${number(-value)}`;
  if (Number.isInteger(value) || value >= 1e3) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  if (value !== 0 && value < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(4)));
}
function seconds(value) {
  if (value < 90) return `${value.toFixed(0)} s`;
  return value < 5400 ? `${(value / 60).toFixed(0)} min` : `${(value / 3600).toFixed(1)} h`;
}
const counted = (many, one, several) => `${number(many)} ${many === 1 ? one : several}`;
const between = (low, high, shown) => (low === null || low === undefined ? "" : `[${shown(low)}, ${shown(high)}]`);
const size = (value) => (value === "inf" ? Infinity : value);

"use strict";
document.documentElement.classList.add("scripted");

// A button that copies a command.
for (const command of document.querySelectorAll("pre.command")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    const text = command.querySelector("code").textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(command.querySelector("code"));
      button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  command.before(button);
}

// A link to a folded section opens it.
function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.localName === "details") target.open = true;
}
addEventListener("hashchange", openTarget);
openTarget();

// A filter of cells: every element with data-cell is shown or hidden with its cell.
function addFilter() {
  const parts = [...document.querySelectorAll("[data-cell]")];
  const cells = new Map();
  for (const part of parts) {
    const known = cells.get(part.dataset.cell) || { text: part.dataset.cell.toLowerCase() };
    known.outcome = part.dataset.outcome || known.outcome;
    known.lanes = part.dataset.lanes || known.lanes || "";
    if (part.matches("details, .searched")) known.text += ` ${part.textContent.toLowerCase()}`;
    cells.set(part.dataset.cell, known);
  }
  const list = readList(cells);
  const items = document.body.dataset.items || "cells";
  const nav = document.querySelector("nav .wrap");
  if (cells.size < 2 || !nav) return;

  const bar = document.createElement("div");
  bar.className = "wrap filter";
  bar.setAttribute("role", "search");
  const text = Object.assign(document.createElement("input"), { type: "search", placeholder: "any text" });
  text.setAttribute("aria-label", `Search ${items}`);
  const outcome = choice("Outcome", "any outcome", [...new Set([...cells.values()].map((cell) => cell.outcome))]);
  const lanes = [...new Set([...cells.values()].flatMap((cell) => cell.lanes.split(" ").filter(Boolean)))];
  const lane = choice("Lane", "any lane", lanes, "fails in ");
  const count = document.createElement("output");
  bar.append(text, outcome, ...(lanes.length ? [lane] : []), count);
  nav.after(bar);

  function apply() {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = (cell) => (!outcome.value || cell.outcome === outcome.value)
      && (!lane.value || cell.lanes.split(" ").includes(lane.value)) && words.every((word) => cell.text.includes(word));
    let shown = 0;
    for (const cell of cells.values()) shown += (cell.shown = wanted(cell));
    for (const part of parts) part.hidden = !cells.get(part.dataset.cell).shown;
    for (const row of document.querySelectorAll(".grid tbody tr")) {
      const squares = [...row.querySelectorAll(".square")];
      row.hidden = squares.length > 0 && squares.every((square) => square.hidden);
    }
    if (list) showFound(list, text.value || outcome.value || lane.value ? [...cells.values()].filter((cell) => cell.shown) : []);
    count.textContent = `${shown === cells.size ? "" : `${shown} of `}${cells.size} ${items}`;
  }
  for (const control of [text, outcome, lane]) control.addEventListener("input", apply);
  addEventListener("hashchange", () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target || !target.closest("[hidden]")) return;
    text.value = outcome.value = lane.value = "";
    apply();
    target.scrollIntoView();
  });
  apply();
}

// A large report has most cells on other pages: their ids, outcomes and failing lanes are in a block of JSON.
function readList(cells) {
  const block = document.getElementById("all-cells");
  if (!block) return null;
  const list = JSON.parse(block.textContent);
  for (const [id, outcome, page, lanes] of list.cells) {
    const known = cells.get(id) || { text: id.toLowerCase() };
    cells.set(id, Object.assign(known, { id, page, mark: outcome, outcome: list.outcomes[outcome][0], lanes }));
  }
  return list;
}

function showFound(list, found) {
  const most = 100;
  const block = document.getElementById("found");
  block.hidden = !found.length;
  block.querySelector("tbody").replaceChildren(...found.filter((cell) => cell.id).slice(0, most).map((cell) => {
    const row = document.createElement("tr");
    const [name, symbol, word] = list.outcomes[cell.mark];
    const link = Object.assign(document.createElement("a"), {
      className: "id",
      href: `${list.pages[cell.page]}#cell-${cell.id.replace(/[^A-Za-z0-9._-]/g, "_")}`,
      textContent: cell.id,
    });
    const chip = Object.assign(document.createElement("span"), { className: `chip o-${name}`, textContent: `${symbol} ${word}` });
    for (const part of [link, chip, cell.lanes]) row.insertCell().append(part);
    return row;
  }));
  block.querySelector(".note").textContent = found.length > most ? `The first ${most} of ${found.length}.` : "";
}

function choice(label, any, values, before = "") {
  const select = document.createElement("select");
  select.setAttribute("aria-label", label);
  select.append(new Option(any, ""), ...values.map((value) => new Option(before + value, value)));
  return select;
}
addFilter();

// Tables whose columns can be sorted: numbers by value (data-sort where the text has several units), others as text.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows].map((row) => [keyOf(row.cells[column]), row]);
      rows.sort(([a], [b]) => (down ? -1 : 1) * compare(a, b));
      table.tBodies[0].append(...rows.map(([, row]) => row));
    });
  });
}

function keyOf(cell) {
  const text = cell.dataset.sort || cell.textContent.trim();
  const number = parseFloat(text.replaceAll(",", ""));
  return cell.classList.contains("num") ? (Number.isNaN(number) ? -Infinity : number) : text;
}

function compare(a, b) {
  return typeof a === "number" ? (a > b) - (a < b) : a.localeCompare(b, "en", { numeric: true });
}

// What refreshes is fetched anew while somebody watches. Without this file, the pages can be read and used too.
"use strict";

(() => {
  const EVERY = 2000; // milliseconds
  const FIELDS = "input, select, textarea";
  const gone = document.getElementById("gone");
  const live = () => document.getElementById("live");
  let asking = false;

  // A person who writes is not disturbed.
  function writes() {
    return document.activeElement?.matches(FIELDS) && live().contains(document.activeElement);
  }

  async function refresh() {
    const again = live().dataset.again;
    if (document.hidden || asking || !again || writes()) return;
    asking = true;
    try {
      const answer = await fetch(again, { headers: { "X-Refresh": "yes" }, signal: AbortSignal.timeout(10 * 1000) });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
      gone.hidden = Boolean(fresh); // a proxy in front of the page may answer in its place
      if (fresh && !writes()) renew(live(), fresh);
      offerCopies();
    } catch {
      gone.hidden = false;
    }
    asking = false;
  }

  // What makes two elements the same thing: a row that moves down stays the row of its message.
  function key(element) {
    if (element.nodeType !== Node.ELEMENT_NODE) return "";
    const ticked = element.matches("[type=checkbox], [type=radio]") ? `=${element.value}` : "";
    const own = element.id || element.getAttribute("href") || (element.matches(FIELDS) && `${element.name}${ticked}`);
    return own || (element.matches("tr") && element.querySelector("a")?.getAttribute("href")) || "";
  }

  function same(one, other) {
    return one.nodeType === other.nodeType && one.nodeName === other.nodeName && key(one) === key(other);
  }

  // Makes `old` like `fresh` and touches only what differs: the focus, marked text, the place to which somebody has
  // scrolled, and open details stay as they are.
  function renew(old, fresh) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    const kept = (name) => name === "open" || (old.matches("button.copy") && name === "hidden");
    for (const { name } of Array.from(old.attributes)) {
      if (!fresh.hasAttribute(name) && !kept(name)) old.removeAttribute(name);
    }
    for (const { name, value } of Array.from(fresh.attributes)) {
      if (old.getAttribute(name) !== value && !kept(name)) old.setAttribute(name, value);
    }
    renewChildren(old, fresh);
  }

  function renewChildren(old, fresh) {
    let place = old.firstChild;
    for (const child of Array.from(fresh.childNodes)) {
      let found = place;
      while (found && !same(found, child)) found = found.nextSibling;
      if (!found) {
        old.insertBefore(child, place);
        continue;
      }
      while (place !== found) place = drop(place);
      renew(found, child);
      place = found.nextSibling;
    }
    while (place) place = drop(place);
  }

  function drop(node) {
    const next = node.nextSibling;
    node.remove();
    return next;
  }

  function offerCopies() {
    for (const button of document.querySelectorAll("button.copy")) button.hidden = !navigator.clipboard;
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });

  const all = document.getElementById("all");
  if (all) {
    all.hidden = false;
    all.addEventListener("change", (event) => {
      for (const box of document.querySelectorAll("input[form=chosen]")) box.checked = event.target.checked;
    });
  }

  document.addEventListener("visibilitychange", refresh);
  offerCopies();
  setInterval(refresh, EVERY);
})();

// Fetches what refreshes anew while somebody watches. Without this file, the pages can be read and used too.
"use strict";

(() => {
  const EVERY = 2000; // milliseconds
  const live = () => document.getElementById("live");
  const gone = document.getElementById("gone");
  let asking = false;
  let opened = {};

  // A person who writes is not disturbed. Nor is one who has marked text to copy it.
  function busy() {
    const focused = document.activeElement;
    const writes = focused && live().contains(focused) && focused.matches("input, select, textarea");
    const selection = window.getSelection();
    return writes || (selection && !selection.isCollapsed && live().contains(selection.anchorNode));
  }

  function refresh() {
    if (document.hidden || asking || !live() || !live().hasAttribute("hx-get") || busy()) return;
    window.htmx.trigger(live(), "refresh");
  }

  function details(within) {
    return Array.from(within.querySelectorAll("details[id]"));
  }

  document.addEventListener("htmx:beforeRequest", () => { asking = true; });
  document.addEventListener("htmx:afterRequest", (event) => {
    asking = false;
    gone.hidden = event.detail.xhr.status > 0;
  });
  document.addEventListener("htmx:beforeSwap", () => {
    opened = Object.fromEntries(details(live()).map((one) => [one.id, one.open]));
  });
  document.addEventListener("htmx:afterSwap", () => {
    for (const one of details(live())) if (one.id in opened) one.open = opened[one.id];
    offerCopies();
  });

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

  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input, select, textarea")) return;
    const search = document.querySelector("input[type=search]");
    if (search) { event.preventDefault(); search.focus(); }
  });

  document.addEventListener("visibilitychange", refresh);
  offerCopies();
  setInterval(refresh, EVERY);
})();

// Keeps the parts of a page that are marked as live up to date: a stream says that there is something new, and the page fetches
// itself again. Everything works without this script, but by reloading.
(() => {
  "use strict";
  const box = document.getElementById("updates");
  const button = document.getElementById("pause");
  const pulse = document.getElementById("pulse");
  const text = document.getElementById("pulse-text");
  const said = document.getElementById("said");
  const remembered = "surefoot.updates";
  let stream = null, asking = null, again = null, paused = false, pressed = false, calls = title();

  function title() {
    const found = /^\((\d+)\)/.exec(document.title);
    return found ? Number(found[1]) : 0;
  }

  function show(state, words) {
    pulse.dataset.state = state;
    if (text.textContent !== words) text.textContent = words;
  }

  // say is for whoever does not see the page: only what matters, and only when it changes.
  function say(words) {
    if (said.textContent !== words) said.textContent = words;
  }

  // busy parts are left alone: somebody types, selects or has something open there.
  function busy(part) {
    const active = document.activeElement;
    if (active && part.contains(active) && /^(INPUT|TEXTAREA|SELECT)$/.test(active.tagName)) return true;
    if (part.querySelector("input:checked")) return true;
    if ([...part.querySelectorAll("input[type=text], input:not([type]), textarea")].some((e) => e.value !== e.defaultValue)) return true;
    const selection = document.getSelection();
    return Boolean(selection && !selection.isCollapsed && selection.anchorNode && part.contains(selection.anchorNode));
  }

  // morph makes an element what a fresh one is, and leaves alone what is the same: focus, what is open, and a link that is just being
  // clicked stay.
  function morph(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || old.id !== fresh.id) {
      old.replaceWith(document.importNode(fresh, true));
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      old.data = fresh.data;
      return;
    }
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
    const now = [...old.childNodes], next = [...fresh.childNodes];
    for (let i = 0; i < Math.max(now.length, next.length); i++) {
      if (i >= next.length) now[i].remove();
      else if (i >= now.length) old.append(document.importNode(next[i], true));
      else morph(now[i], next[i]);
    }
  }

  function take(page) {
    for (const part of document.querySelectorAll("[data-live][id]")) {
      const fresh = page.getElementById(part.id);
      if (!fresh && part.id === "error") { // what was in the way has passed
        location.reload();
        return;
      }
      if (fresh && !busy(part)) morph(part, fresh);
    }
    document.title = page.title;
    const now = title();
    if (now !== calls) say(now === 0 ? "Nothing needs attention" : now + (now === 1 ? " thing" : " things") + " to look at");
    calls = now;
  }

  function refresh() {
    if (paused || asking || pressed) return;
    asking = new XMLHttpRequest();
    asking.open("GET", location.href);
    asking.responseType = "document"; // parsed by the browser; its scripts do not run
    asking.timeout = 20000;
    asking.onload = () => {
      const page = asking.response, out = asking.status === 401;
      asking = null;
      if (paused || pressed) return;
      if (out) { stop(); show("off", "Logged out: reload"); say("You are logged out"); return; }
      if (page && page.getElementById("main")) { take(page); show("on", "Live"); } else show("off", "Out of reach");
    };
    asking.onerror = asking.ontimeout = asking.onabort = () => { asking = null; if (!paused) show("off", "Out of reach"); };
    asking.send();
  }

  function listen() {
    if (stream || paused || document.hidden) return;
    stream = new EventSource("/live");
    stream.addEventListener("tick", refresh);
    stream.onerror = () => {
      show("off", "Out of reach");
      if (stream && stream.readyState === EventSource.CLOSED) { // refused: no place, or the end of the process
        stop();
        again = setTimeout(listen, 10000);
      }
    };
  }

  function stop() {
    clearTimeout(again);
    if (stream) stream.close();
    stream = null;
  }

  function set(wanted) {
    paused = wanted;
    try { localStorage.setItem(remembered, paused ? "paused" : "on"); } catch { /* private windows */ }
    button.textContent = paused ? "Resume" : "Pause";
    button.setAttribute("aria-label", paused ? "Resume live updates" : "Pause live updates");
    button.setAttribute("aria-pressed", String(paused));
    if (paused) { stop(); show("paused", "Paused"); } else { show("on", "Live"); listen(); refresh(); }
  }

  if (!document.querySelector("main [data-live]:not(#problems)")) return; // nothing here changes by itself
  box.hidden = false;
  button.addEventListener("click", () => { set(!paused); say(paused ? "Live updates are paused" : "Live updates go on"); });
  for (const [kind, down] of [["pointerdown", true], ["pointerup", false], ["pointercancel", false], ["dragend", false]]) document.addEventListener(kind, () => { pressed = down; });
  window.addEventListener("blur", () => { pressed = false; });
  document.addEventListener("visibilitychange", () => { if (document.hidden) stop(); else if (!paused) { listen(); refresh(); } });
  window.addEventListener("pagehide", stop);
  window.addEventListener("pageshow", listen);
  let was = null;
  try { was = localStorage.getItem(remembered); } catch { /* private windows */ }
  if (was === "paused") set(true); else { button.setAttribute("aria-label", "Pause live updates"); listen(); }
})();

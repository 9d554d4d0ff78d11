// Live updates: the server sends the part of the page that changes. Without this script, every page is complete, and reloads.
"use strict";
(() => {
  const live = document.getElementById("live");
  const connection = document.getElementById("connection");
  const RETRY = 10000; // milliseconds
  let source = null;
  let timer = 0;

  const say = (text) => {
    if (connection.textContent !== text) connection.textContent = text;
  };

  // What identifies an element across updates.
  const keyOf = (element) => element.id || element.getAttribute("href");

  const isReading = () => {
    const selection = getSelection();
    return selection !== null && !selection.isCollapsed && live.contains(selection.anchorNode);
  };

  const show = (html) => {
    if (isReading()) return; // A selection would be lost; the next update comes.
    const focused = live.contains(document.activeElement) ? keyOf(document.activeElement) : null;
    const parsed = new DOMParser().parseFromString(html, "text/html");
    live.replaceChildren(...parsed.body.childNodes);
    if (focused !== null) {
      const again = [...live.querySelectorAll("[id], a[href]")].find((element) => keyOf(element) === focused);
      if (again) again.focus({ preventScroll: true });
    }
    say("Live, " + new Date().toLocaleTimeString());
  };

  const poll = async () => {
    clearTimeout(timer);
    if (document.hidden || source !== null) return;
    try {
      const response = await fetch(location.href, { headers: { Accept: "application/x-live" }, cache: "no-store" });
      if (!response.ok && response.status !== 404) throw new Error(response.statusText);
      show(await response.text());
    } catch {
      say("Not connected; trying again");
    }
    timer = setTimeout(connect, RETRY);
  };

  const close = () => {
    if (source !== null) source.close();
    source = null;
    clearTimeout(timer);
  };

  const connect = () => {
    close();
    if (document.hidden) return;
    source = new EventSource(location.href);
    source.addEventListener("page", (event) => show(JSON.parse(event.data)));
    source.onerror = () => {
      // Too many pages are open, or the replica ended: one request now and then.
      close();
      say("Not connected; trying again");
      poll();
    };
  };

  // A hidden page uses no connection.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : connect()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", connect);

  // The search applies as it is typed.
  const search = document.getElementById("search");
  if (search !== null) {
    let typing = 0;
    const apply = () => {
      const query = new URLSearchParams([...new FormData(search)].filter(([, value]) => value !== ""));
      const text = query.toString();
      history.replaceState(null, "", text === "" ? location.pathname : "?" + text);
      connect();
    };
    search.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(apply, 250);
    });
    search.addEventListener("submit", (event) => {
      event.preventDefault();
      clearTimeout(typing);
      apply();
    });
  }
})();

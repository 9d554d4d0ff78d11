// Live updates: the server sends the part of the page that changes. Without this script, every page is complete, and reloads.
"use strict";
(() => {
  const element = (id) => document.getElementById(id);
  const [live, connection, stale, found, pause] = ["live", "connection", "stale", "found", "pause"].map(element);
  const RETRY = 10000; // milliseconds
  // The server sends the page at least every 15 s.
  const SILENT = 20000;
  let source = null;
  let timer = 0;
  let isPaused = false;
  // The last page that arrived while nothing may change.
  let held = null;
  let arrived = performance.now();
  let opened = arrived;
  let isLive = false;
  let shown = { at: performance.now(), clock: new Date() };
  let isTyped = false;

  const say = (where, text) => {
    if (where.textContent !== text) where.textContent = text;
  };

  // What identifies an element across updates.
  const keyOf = (one) => one.id || one.getAttribute("href");

  // A selection would be lost by an update.
  const isReading = () => {
    const selection = getSelection();
    return selection !== null && !selection.isCollapsed && live.contains(selection.anchorNode);
  };

  // Says that the page is old, and why, where it is always seen.
  const judge = () => {
    let why = "";
    if (isPaused) why = "Paused";
    else if (isReading()) why = "Not updated while text is selected";
    else if (performance.now() - arrived > SILENT) why = "Not connected";
    document.body.classList.toggle("stale", why !== "");
    say(stale, why === "" ? "" : why + ": this is the state of " + shown.clock.toLocaleTimeString() + ".");
    if (why === "") why = isLive ? "Live, " + shown.clock.toLocaleTimeString() : "Connecting";
    say(connection, why);
    say(pause, isPaused ? "Resume" : "Pause");
  };

  // As crate::views::age does.
  const age = (seconds) => {
    if (seconds < 120) return seconds + "s";
    if (seconds < 7200) return Math.floor(seconds / 60) + "m";
    if (seconds < 172800) return Math.floor(seconds / 3600) + "h";
    return Math.floor(seconds / 86400) + "d";
  };

  // Times go on between updates.
  const advance = () => {
    const since = Math.floor((performance.now() - shown.at) / 1000);
    for (const time of live.querySelectorAll("time[data-age]")) say(time, age(Number(time.dataset.age) + since) + " ago");
  };

  const show = (html) => {
    arrived = performance.now();
    isLive = true;
    if (isPaused || isReading()) {
      held = html;
      return judge();
    }
    held = null;
    const focused = live.contains(document.activeElement) ? keyOf(document.activeElement) : null;
    const parsed = new DOMParser().parseFromString(html, "text/html");
    live.replaceChildren(...parsed.body.childNodes);
    if (focused !== null) {
      const again = [...live.querySelectorAll("[id], a[href]")].find((one) => keyOf(one) === focused);
      if (again) again.focus({ preventScroll: true });
    }
    shown = { at: arrived, clock: new Date() };
    if (isTyped) {
      isTyped = false;
      const result = live.querySelector("caption, .empty");
      say(found, result === null ? "" : result.textContent);
    }
    judge();
  };

  // Shows what arrived meanwhile.
  const release = () => {
    if (held !== null && !isPaused && !isReading()) show(held);
    else judge();
  };

  const poll = async () => {
    clearTimeout(timer);
    if (document.hidden || source !== null) return;
    try {
      const options = { headers: { Accept: "application/x-live" }, cache: "no-store", signal: AbortSignal.timeout(RETRY) };
      const response = await fetch(location.href, options);
      if (!response.ok && response.status !== 404) throw new Error(response.statusText);
      show(await response.text());
    } catch {
      arrived = -SILENT;
      judge();
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
    opened = performance.now();
    source = new EventSource(location.href);
    source.addEventListener("page", (event) => show(JSON.parse(event.data)));
    source.onerror = () => {
      // Too many pages are open, or the replica ended: one request now and then.
      close();
      poll();
    };
  };

  setInterval(() => {
    if (document.hidden) return;
    advance();
    judge();
    // A connection may be dead without an error, as through a port-forward that hangs.
    if (source !== null && performance.now() - Math.max(arrived, opened) > SILENT) {
      close();
      poll();
    }
  }, 1000);

  pause.hidden = false;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    release();
  });
  document.addEventListener("selectionchange", release);

  // A hidden page uses no connection.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : connect()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", connect);

  // The search applies as it is typed.
  const search = element("search");
  if (search !== null) {
    let typing = 0;
    const apply = () => {
      const query = new URLSearchParams([...new FormData(search)].filter(([, value]) => value !== ""));
      const text = query.toString();
      history.replaceState(null, "", text === "" ? location.pathname : "?" + text);
      isTyped = true;
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

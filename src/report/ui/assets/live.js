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
  // The page's one time zone is that of Kubernetes: UTC.
  const utc = (time) => time.toISOString().slice(11, 19) + "Z";
  let isTyped = false;

  const say = (where, text) => {
    if (where.textContent !== text) where.textContent = text;
  };

  // What identifies an element across updates.
  const keyOf = (one) => one.id || one.getAttribute("href") || one.dataset.copy;

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
    say(stale, why === "" ? "" : why + ": this is the state of " + utc(shown.clock) + ".");
    if (why === "") why = isLive ? "Live, " + utc(shown.clock) : "Connecting";
    say(connection, why);
    say(pause, isPaused ? "Resume" : "Pause");
  };

  // As crate::ui::layout does.
  const duration = (seconds) => {
    if (seconds < 120) return seconds + " s";
    if (seconds < 7200) return Math.floor(seconds / 60) + " min";
    if (seconds < 172800) return Math.floor(seconds / 3600) + " h";
    return Math.floor(seconds / 86400) + " d";
  };
  const words = (seconds, before) => {
    if (seconds < 5) return "now";
    return before ? before + duration(seconds) : duration(seconds) + " ago";
  };

  // Times go on between updates.
  const advance = () => {
    const since = Math.floor((performance.now() - shown.at) / 1000);
    for (const time of live.querySelectorAll("time[data-age]")) say(time, words(Number(time.dataset.age) + since, time.dataset.before));
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
      const again = [...live.querySelectorAll("[id], a[href], [data-copy]")].find((one) => keyOf(one) === focused);
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

  document.body.classList.add("scripted");
  // A click copies an id or a command. Not every page may use the clipboard: only those of localhost and HTTPS.
  const copy = (text) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const field = document.body.appendChild(document.createElement("textarea"));
    field.value = text;
    const focused = document.activeElement;
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    if (focused) focused.focus({ preventScroll: true });
    return copied ? Promise.resolve() : Promise.reject();
  };
  live.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (button === null) return;
    const done = await copy(button.dataset.copy).then(() => "Copied", () => "Not copied");
    say(found, done);
    button.dataset.done = done;
    setTimeout(() => delete button.dataset.done, 1500);
  });

  // Keys: / searches, j and k or the arrows move between applications, Escape leaves the search.
  const move = (by) => {
    const links = [...live.querySelectorAll("table.apps tbody th a")];
    const at = links.indexOf(document.activeElement);
    const next = links[at < 0 ? (by > 0 ? 0 : links.length - 1) : at + by];
    if (next) next.focus();
    return next !== undefined;
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const field = document.querySelector("#search input[type=search]");
    const isTyping = event.target.matches("input, select, textarea");
    const isOnLink = event.target.matches("table.apps tbody th a");
    if (event.key === "/" && field !== null && !isTyping) {
      event.preventDefault();
      field.select();
      field.focus();
    } else if (event.key === "Escape" && event.target === field) {
      field.blur();
    } else if (!isTyping) {
      const isDown = event.key === "j" || (event.key === "ArrowDown" && isOnLink);
      const isUp = event.key === "k" || (event.key === "ArrowUp" && isOnLink);
      if ((isDown || isUp) && move(isDown ? 1 : -1)) event.preventDefault();
    }
  });

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

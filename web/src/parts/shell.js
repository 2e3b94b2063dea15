/* What stands around every view: name, how the cluster is, where one can go, and whether what is shown
 * is still true. */
import { useEffect, useState } from "preact/hooks";
import { forgetToken, token } from "../lib/api.js";
import { now as serverNow } from "../lib/clock.js";
import { useTopics } from "../lib/frame.js";
import { ago, count, time } from "../lib/format.js";
import { latest } from "../lib/history.js";
import { html } from "../lib/html.js";
import { known, retry } from "../lib/known.js";
import { go, href, place } from "../lib/router.js";
import { switchTheme, theme } from "../lib/theme.js";
import { Modal } from "./dialog.js";
import { ClusterMark, Mark } from "./mark.js";
import { Submit } from "./submit.js";

export const TABS = [
  { path: "", title: "Overview", key: "1" },
  { path: "nodes", title: "Nodes", key: "2" },
  { path: "jobs", title: "Jobs", key: "3" },
  { path: "pools", title: "Pools", key: "4" },
  { path: "deployments", title: "Deployments", key: "5", when: () => known.deployments },
  { path: "events", title: "Events", key: "6" },
  { path: "report", title: "Report", key: "7" },
  { path: "limits", title: "Limits", key: "8" },
];

/* A second hand, for texts like "12 s ago". */
export function useSeconds() {
  const [now, setNow] = useState(serverNow());

  useEffect(() => {
    const timer = setInterval(() => !document.hidden && setNow(serverNow()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

function LinkState() {
  const { state } = known.link;
  const [tone, word] = { live: ["good", "live"], connecting: ["wait", "connecting"] }[state] || [
    "critical",
    "not connected",
  ];
  return html`<span class="link-state" data-link=${state}><${Mark} tone=${tone}>${word}<//></span>`;
}

function Stale() {
  const now = useSeconds();
  const { state, heardMs, retryMs, why } = known.link;

  if (state === "lost")
    return html`<div class="banner bad" role="alert">
      <b>Not connected. </b>
      ${heardMs ? `Stale since ${time(heardMs)} (${ago(heardMs, now)}). ` : "The server did not answer yet. "}
      ${why}
      <span class="muted"> ${retryMs > now ? `Next try in ${Math.ceil((retryMs - now) / 1000)} s.` : "Trying…"}</span>
      <button onClick=${retry}>Try now</button>
    </div>`;
  if (known.cluster && known.cluster.stale)
    return html`<div class="banner bad" role="alert"><b>The store does not answer.</b> Servers are shown as they are, their
      tasks are not known, and nothing is dispatched until it is back.</div>`;
  return null;
}

function Figures() {
  const point = latest();
  const { cluster, servers } = known;
  if (!cluster) return null;
  const online = servers.filter((server) => server.online).length;
  const up = online === servers.length ? count(online) : `${count(online)}/${count(servers.length)}`;
  return html`<dl class="figures">
    <div><dt>${servers.length === 1 ? "server" : "servers"}</dt><dd class="num">${up}</dd></div>
    <div><dt>slots used</dt><dd class="num">${count(cluster.used)}/${count(cluster.total)}</dd></div>
    <div><dt>waiting</dt><dd class="num">${count(point ? point.queue : 0)}</dd></div>
  </dl>`;
}

const SHORTCUTS = [
  ["1 … 8", "go to a view"],
  ["/", "filter"],
  ["↑ ↓ or j k", "move in a table"],
  ["Enter", "open"],
  ["Esc", "back, or close"],
  ["n", "submit a task"],
  ["t", "light or dark"],
  ["?", "this list"],
];

function Shortcuts({ close }) {
  return html`<${Modal} title="Keys" close=${close}>
    <dl class="keys">${SHORTCUTS.map(([key, what]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl>
    <p class="buttons"><button onClick=${close} autofocus>Close</button></p>
  <//>`;
}

function intoTable() {
  document.querySelector(".rows tr[tabindex='0']")?.focus();
}

function useKeys(actions) {
  useEffect(() => {
    function onKey(event) {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      const typing = event.target.closest("input, textarea, select");
      if (typing && event.key === "Escape") event.target.blur();
      if (typing || !actions[event.key]) return;
      event.preventDefault();
      actions[event.key]();
    }
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  });
}

export function Shell({ children }) {
  const [sheet, setSheet] = useState(null);
  const here = place.path[0] || "";
  const other = theme() === "dark" ? "light" : "dark";
  const tabs = TABS.filter((tab) => !tab.when || tab.when());
  const actions = {
    "/": () => (document.querySelector("input[type=search]") || { focus() {} }).focus(),
    "?": () => setSheet("keys"),
    n: () => setSheet("submit"),
    t: switchTheme,
    j: intoTable,
    k: intoTable,
    Escape: () => place.path.length > 1 && go(here),
  };
  for (const tab of tabs) actions[tab.key] = () => go(tab.path);

  useTopics("place", "link", "cluster", "history", "slow", "theme");
  useKeys(actions);
  return html`
    <header class="top">
      <a class="brand" href="#/"><img src="/page/icon.svg" alt="" width="22" height="22" />berth</a>
      ${known.cluster && html`<a href="#/"><${ClusterMark} status=${known.cluster.status} /></a>`}
      <${Figures} />
      <span class="spring"></span>
      <${LinkState} />
      <button class="main small" onClick=${() => setSheet("submit")}>Submit a task</button>
      <button class="icon" onClick=${switchTheme} aria-label=${other} title="Light or dark (t)">
        ${other === "light" ? "☀" : "☾"}
      </button>
      <button class="icon" onClick=${() => setSheet("keys")} aria-label="Keys" title="Keys (?)">?</button>
    </header>
    <nav class="tabs" aria-label="Views">
      ${tabs.map(
        ({ path, title }) =>
          html`<a key=${path} href=${href(path)} aria-current=${here === path ? "page" : undefined}>${title}</a>`,
      )}
    </nav>
    <${Stale} />
    <main class=${known.link.state === "lost" ? "stale" : ""}>${children}</main>
    <footer class="foot muted">berth ${known.version}
      ${token() && html` · <button class="plain" onClick=${forgetToken}>forget the token</button>`}
      <span class="wide"> · press <kbd>?</kbd> for keys</span></footer>
    ${sheet === "keys" && html`<${Shortcuts} close=${() => setSheet(null)} />`}
    ${sheet === "submit" && html`<${Submit} close=${() => setSheet(null)} />`}`;
}

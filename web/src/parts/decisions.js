/* How the server chose for a job: for every node the first reason it did not get it. */
import { useState } from "preact/hooks";
import { seg } from "../lib/api.js";
import { count, plural, time } from "../lib/format.js";
import { reasonText } from "../lib/explain.js";
import { html } from "../lib/html.js";
import { useReading } from "../lib/reading.js";
import * as shape from "../lib/shape.js";
import { NodeLink } from "./link.js";
import { Mark } from "./mark.js";

const SHOWN = 8;
const FIRST = { CHOSEN: 0, RANKED_BEHIND: 1 };

/* Those that came closest first. */
function order(nodes) {
  return [...nodes].sort((a, b) => (shape.pick(FIRST, a.reason) ?? 2) - (shape.pick(FIRST, b.reason) ?? 2));
}

function Decision({ title, decision }) {
  const [all, setAll] = useState(false);
  const placed = decision.outcome === "PLACED";
  const nodes = order(decision.nodes);
  const tone = placed ? "good" : decision.waits ? "wait" : "critical";
  const from = [
    decision.policy && `Policy ${decision.policy} (${decision.policy_key})`,
    `snapshot ${decision.snapshot_version}`,
    decision.pool_id && `pool ${decision.pool_id}`,
  ];
  const rest = nodes.length - SHOWN + decision.nodes_left_out;

  return html`<div class="decision">
    <p><b>${title}</b> <${Mark} tone=${tone}>${placed ? `to ${decision.node_id}` : decision.outcome}<//>
      ${decision.waits && html`<span class="muted">it waits</span>`}</p>
    ${!placed && html`<p>${decision.detail} ${reasonText(decision.outcome)}</p>`}
    ${decision.keys.map((key) => html`<p class=${key.why ? "" : "muted"}>${key.detail}</p>`)}
    <p class="reasons">${Object.entries(decision.reasons)
      .sort((a, b) => b[1] - a[1])
      .map(
        ([reason, n]) => html`<span class="chip" title=${reasonText(reason)}>
      <b class="num">${count(n)}</b> ${reason.toLowerCase().replaceAll("_", " ")}</span>`,
      )}
      <span class="muted num">of ${plural(decision.nodes_total, "node")}</span></p>
    ${
      nodes.length > 0 &&
      html`<table class="plain-rows"><tbody>
      ${nodes.slice(0, all ? nodes.length : SHOWN).map(
        (node) => html`<tr class=${node.reason === "CHOSEN" ? "bites" : ""}>
        <td>${node.node_id ? html`<${NodeLink} id=${node.node_id} />` : "a node that is gone"}</td>
        <td class="small">${node.reason}</td><td class="muted">${node.detail}</td></tr>`,
      )}
    </tbody></table>`
    }
    ${!all && rest > 0 && html`<button class="plain" onClick=${() => setAll(true)}>${count(rest)} more</button>`}
    <p class="muted small">${from.filter(Boolean).join(", ")}</p>
  </div>`;
}

export function Decisions({ id, state, otherwise }) {
  const { answer: found, error } = useReading(`/v1/jobs/${seg(id)}/explain?limit=200`, shape.explain, 0, state);
  if (!found && !error) return null;
  const { decisions = [], now = null, node_id } = found || {};
  if (!decisions.length && !now) return otherwise ? html`<p class="empty">${otherwise}</p>` : null;
  return html`<section class="panel whole" id="explain"><h2>${otherwise ? "Why it was refused" : "How it was placed"}</h2>
    ${now && !node_id && html`<${Decision} title="What would happen now" decision=${now} />`}
    ${[...decisions]
      .reverse()
      .slice(0, 10)
      .map(
        (decision) => html`<${Decision} key=${decision.at_ms} decision=${decision}
      title=${`${time(decision.at_ms)}, attempt ${decision.attempt_id}`} />`,
      )}
  </section>`;
}

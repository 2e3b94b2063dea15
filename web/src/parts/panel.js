/* Panels of a detail view: a titled box, a list of facts, a small table. */
import { html } from "../lib/html.js";

export function Panel({ title, whole, children }) {
  return html`<section class="panel ${whole ? "whole" : ""}">
    <h2>${title}</h2>
    ${children}
  </section>`;
}

/* rows: [[name, value]]; what is not known or nothing is left out. */
export function Facts({ rows, whole }) {
  const known = rows.filter(([, value]) => value != null && value !== false && value !== 0);
  return html`<${Panel} title="Facts" whole=${whole}>
    <dl class="facts">
      ${known.map(
        ([name, value]) =>
          html`<div>
            <dt>${name}</dt>
            <dd>${value}</dd>
          </div>`,
      )}
    </dl>
  <//>`;
}

/* head: titles, those with a dot before them are figures, with a tilde left out on a phone. */
export function Rows({ head, name = "", children }) {
  const look = { ".": "num", "~": "wide" };
  return html`<table class="plain-rows ${name}">
    <thead>
      <tr>
        ${head.map((title) => {
          const [, marks, text] = /^([.~]*)(.*)$/.exec(title);
          return html`<th class=${[...marks].map((mark) => look[mark]).join(" ")}>${text}</th>`;
        })}
      </tr>
    </thead>
    <tbody>
      ${children}
    </tbody>
  </table>`;
}

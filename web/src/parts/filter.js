/* Narrowing a list: a search field and a few choices, both kept in the address. */
import { html } from "../lib/html.js";
import { place, refine } from "../lib/router.js";

export function Search({ of, by }) {
  return html`<input type="search" placeholder="Filter by ${by}" aria-label="Filter ${of}" value=${place.query.get("q") || ""}
    onInput=${(event) => refine({ q: event.target.value })} />`;
}

/* Does one of the words have what is searched for in it? */
export function found(words) {
  const text = (place.query.get("q") || "").toLowerCase();
  return !text || words.some((word) => word && word.toLowerCase().includes(text));
}

export function Choices({ field, options, otherwise = "" }) {
  const value = place.query.get(field) || otherwise;
  return html`<div class="segments" role="group">${options.map(
    ([key, title]) => html`<button key=${key}
    aria-pressed=${value === key} onClick=${() => refine({ [field]: key })}>${title}</button>`,
  )}</div>`;
}

/* Light or dark: as the system has it until somebody says otherwise. */
import { changed } from "./frame.js";

const KEY = "berth.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

function chosen() {
  return localStorage.getItem(KEY);
}

export function theme() {
  return chosen() || (system.matches ? "dark" : "light");
}

function apply() {
  document.documentElement.dataset.theme = theme();
  changed("theme");
}

export function switchTheme() {
  const next = theme() === "dark" ? "light" : "dark";
  if (next === (system.matches ? "dark" : "light")) localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, next);
  apply();
}

system.addEventListener("change", apply);
apply();

/* The value of a colour right now, for what is drawn on a canvas. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

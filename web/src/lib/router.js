/* Where we are: #/jobs/j0abc?state=FAILED is {path: ["jobs", "j0abc"], query}. */
import { changed } from "./frame.js";

/* Anybody can make a link: what is not encoded as it should be is taken as it is. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function read() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { path: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query || "") };
}

export let place = read();

addEventListener("hashchange", () => {
  const before = place.path.join("/");
  place = read();
  if (place.path.join("/") !== before) scrollTo(0, 0);
  changed("place");
});

export function href(...path) {
  return `#/${path.map(encodeURIComponent).join("/")}`;
}

export function go(...path) {
  location.hash = href(...path);
}

/* The same place with another query; does not add to the history. */
export function refine(fields) {
  for (const [name, value] of Object.entries(fields)) {
    if (value) place.query.set(name, value);
    else place.query.delete(name);
  }
  const query = String(place.query);
  history.replaceState(null, "", href(...place.path) + (query ? `?${query}` : ""));
  changed("place");
}

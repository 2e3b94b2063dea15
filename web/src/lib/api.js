/* Calls to the server we came from. The token, where there is one, lives as long as this tab. */
import { heardTime } from "./clock.js";
import { changed } from "./frame.js";
import * as shape from "./shape.js";

const KEY = "berth.token";
export const login = { wanted: false, why: null };

export function token() {
  return sessionStorage.getItem(KEY);
}

/* Nothing that was read with it stays in memory either. */
export function forgetToken() {
  sessionStorage.removeItem(KEY);
  location.reload();
}

export function setToken(text) {
  sessionStorage.setItem(KEY, text);
  login.wanted = false;
  login.why = null;
  changed("login");
}

export class Refusal extends Error {
  constructor(status, said) {
    const problem = shape.problem(said);
    super(problem.detail || problem.title || `The server answered ${status}.`);
    this.status = status;
    this.code = problem.error || null;
    this.problem = problem;
  }
}

async function refusalOf(answer) {
  let problem = {};
  try {
    problem = await answer.json();
  } catch {
    /* not ours: a proxy's */
  }
  const refusal = new Refusal(answer.status, problem);
  if (answer.status === 401) askLogin(token() && "The server does not know this token.");
  return refusal;
}

export function askLogin(why) {
  login.wanted = true;
  login.why = why;
  changed("login");
}

/* The answer itself, for streams; throws a Refusal when it is not a good one. */
export async function open(path, more = {}) {
  const headers = { ...(more.headers || {}) };
  if (token()) headers.Authorization = `Bearer ${token()}`;
  const answer = await fetch(path, { cache: "no-store", credentials: "omit", ...more, headers });
  heardTime(answer.headers.get("Date"));
  if (!answer.ok) throw await refusalOf(answer);
  return answer;
}

/* `as` is what the answer may hold, see shape.js. */
export async function get(path, as, more) {
  return as(await (await open(path, more)).json());
}

export async function post(path, body = {}) {
  return get(path, shape.placed, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
}

export const seg = encodeURIComponent;

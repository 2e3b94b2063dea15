/* The server's time: its records are shown as "12 s ago", and this machine's clock may be off. */
const TOLERATED_MS = 2500; /* the header has whole seconds, and travels */
let off = 0;

export function heardTime(header) {
  const ms = header ? Date.parse(header) - Date.now() : 0;
  off = Math.abs(ms) > TOLERATED_MS ? ms : 0;
}

export function now() {
  return Date.now() + off;
}

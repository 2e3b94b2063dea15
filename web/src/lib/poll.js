/* Asks again and again, politely: never two at once, not while nobody looks, less often the larger
 * the answer is. */
export class Poll {
  constructor(ask, everyMs) {
    this.ask = ask;
    this.everyMs = everyMs;
    this.timer = null;
    this.busy = false;
    this.again = false;
    this.on = false;
    this.last = 0; /* when the last answer came */
    this.at = Infinity; /* when the next question is due */
    document.addEventListener("visibilitychange", () => !document.hidden && this.on && this.soon());
  }

  start() {
    this.on = true;
    this.soon();
  }

  stop() {
    this.on = false;
    this.at = Infinity;
    clearTimeout(this.timer);
  }

  /* Something happened: ask now, or as soon as the last answer is old enough. */
  soon(leastMs = 0) {
    if (!this.on) return;
    if (this.busy) {
      this.again = true;
      return;
    }
    const at = Math.max(Date.now(), this.last + leastMs);
    if (at >= this.at) return; /* it will be asked earlier than that anyway */
    this.plan(at);
  }

  plan(at) {
    clearTimeout(this.timer);
    this.at = at;
    this.timer = setTimeout(() => this.run(), at - Date.now());
  }

  async run() {
    this.at = Infinity;
    if (this.busy || !this.on || document.hidden) return;
    this.busy = true;
    this.again = false;
    const begun = Date.now();
    try {
      await this.ask();
    } finally {
      this.busy = false;
      this.last = Date.now();
      const rest = Math.max(this.everyMs, 10 * (this.last - begun));
      if (this.on) this.plan(this.last + (this.again ? 200 : rest));
    }
  }
}

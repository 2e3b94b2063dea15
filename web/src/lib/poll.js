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
    this.last = 0;
    document.addEventListener("visibilitychange", () => !document.hidden && this.on && this.soon());
  }

  start() {
    this.on = true;
    this.soon();
  }

  stop() {
    this.on = false;
    clearTimeout(this.timer);
  }

  /* Something happened: ask now, or as soon as the last answer is old enough. */
  soon(leastMs = 0) {
    if (!this.on) return;
    if (this.busy) {
      this.again = true;
      return;
    }
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.run(), Math.max(0, this.last + leastMs - Date.now()));
  }

  async run() {
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
      if (this.on) this.timer = setTimeout(() => this.run(), this.again ? 200 : rest);
    }
  }
}

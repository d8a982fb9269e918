// What the browser keeps for this page; where it refuses to, the page itself remembers it until it is left.

class Store {
  /** open: gives the browser's own storage, or throws where that is refused. */
  constructor(open) {
    this.open = open;
    this.remembered = new Map(); // only what the browser would not take
  }

  /** What was set under this name, "" if nothing. */
  get(name) {
    if (this.remembered.has(name)) return this.remembered.get(name);
    try {
      return this.open().getItem(name) ?? "";
    } catch {
      return "";
    }
  }

  set(name, text) {
    this.remembered.delete(name);
    try {
      if (text) this.open().setItem(name, text);
      else this.open().removeItem(name);
    } catch {
      this.remembered.set(name, text);
    }
  }
}

export const ofTab = new Store(() => sessionStorage);
export const ofBrowser = new Store(() => localStorage);

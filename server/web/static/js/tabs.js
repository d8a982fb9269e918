// The views as tabs: arrow keys move between them, the address keeps which one is open.

/** `opened(name)` is called with the id of the panel that has just come into view, at the start too. */
export function startTabs(list, opened) {
  const tabs = [...list.querySelectorAll("[role=tab]")];
  const panelOf = (tab) => tab.getAttribute("aria-controls");

  function select(tab, focus = false) {
    for (const other of tabs) {
      const chosen = other === tab;
      other.setAttribute("aria-selected", String(chosen));
      other.tabIndex = chosen ? 0 : -1;
      document.getElementById(panelOf(other)).hidden = !chosen;
    }
    if (focus) tab.focus();
    history.replaceState(null, "", `#${panelOf(tab)}`);
    opened(panelOf(tab));
  }

  for (const [index, tab] of tabs.entries()) {
    tab.addEventListener("click", () => select(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      select(tabs[(index + step + tabs.length) % tabs.length], true);
    });
  }
  const named = () => tabs.find((tab) => `#${panelOf(tab)}` === location.hash);
  addEventListener("hashchange", () => named() && select(named()));
  select(named() ?? tabs[0]);
}

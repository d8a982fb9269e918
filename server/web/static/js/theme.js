// Light or dark: the system's preference until the reader picks one.

import { ofBrowser } from "./storage.js";

const system = matchMedia("(prefers-color-scheme: dark)");

export const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";

/** Wire the button; `changed` is called after every change, the system's included. */
export function startTheme(button, changed) {
  const show = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
    changed();
  };
  button.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    ofBrowser.set("theme", theme);
    show();
  });
  system.addEventListener("change", show);
  show();
}

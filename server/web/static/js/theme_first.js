// Before the first paint: a theme chosen earlier; without one, or where the browser keeps nothing, the system's own.
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage is refused here: storage.js remembers what is picked for as long as the page is open.
}

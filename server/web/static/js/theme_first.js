// Before the first paint: a theme chosen earlier; without one the system's own holds.
{
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}

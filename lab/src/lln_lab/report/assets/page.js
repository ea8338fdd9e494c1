"use strict";
// The theme, and every drawing of the page.

const system = matchMedia("(prefers-color-scheme: dark)");
const paper = matchMedia("print");

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return !paper.matches && (chosen ? chosen === "dark" : system.matches);
}

function remember(theme) {
  try {
    if (theme === undefined) return localStorage.getItem("lln-report-theme");
    localStorage.setItem("lln-report-theme", theme);
  } catch {
    // Some browsers keep nothing for a page opened from a file.
  }
  return null;
}

const drawings = JSON.parse(document.getElementById("drawings").textContent);
const maps = [];
for (const figure of document.querySelectorAll("figure[data-drawing]")) {
  const data = drawings[Number(figure.dataset.drawing)];
  if (figure.classList.contains("maps")) maps.push(new AttentionMaps(figure, data));
  else new LinePlot(figure, data);
}

const toggle = document.getElementById("theme");

function themeChanged() {
  toggle.setAttribute("aria-pressed", String(isDark()));
  for (const map of maps) map.draw();
}

toggle.addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  remember(theme);
  themeChanged();
});
system.addEventListener("change", themeChanged);
paper.addEventListener("change", themeChanged);

const folded = [];
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not([open]):not(.values)")) {
    details.open = true;
    folded.push(details);
  }
});
addEventListener("afterprint", () => {
  for (const details of folded.splice(0)) details.open = false;
});

const remembered = remember();
if (remembered === "light" || remembered === "dark") document.documentElement.dataset.theme = remembered;
themeChanged();

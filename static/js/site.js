// Small comforts. Every page works without this file.
(() => {
  "use strict";
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");

  const current = () => root.dataset.theme || (system.matches ? "dark" : "light");

  function announceTheme() {
    document.dispatchEvent(new CustomEvent("themechange"));
  }

  function labelToggle(button) {
    const next = current() === "dark" ? "light" : "dark";
    button.querySelector("[data-label]").textContent = next === "dark" ? "Dark" : "Light";
    button.setAttribute("aria-label", `Use the ${next} theme`);
    button.hidden = false;
  }

  function themeToggle(button) {
    labelToggle(button);
    system.addEventListener("change", () => {
      labelToggle(button);
      announceTheme();
    });
    button.addEventListener("click", () => {
      root.dataset.theme = current() === "dark" ? "light" : "dark";
      try {
        localStorage.setItem("theme", root.dataset.theme);
      } catch {
        // The choice then holds for this page only.
      }
      labelToggle(button);
      announceTheme();
    });
  }

  function dropZone(zone) {
    const input = zone.querySelector("input[type=file]");
    const stop = (event) => event.preventDefault();
    ["dragenter", "dragover"].forEach((name) =>
      zone.addEventListener(name, (event) => {
        stop(event);
        zone.classList.add("over");
      }),
    );
    ["dragleave", "drop"].forEach((name) =>
      zone.addEventListener(name, (event) => {
        stop(event);
        zone.classList.remove("over");
      }),
    );
    zone.addEventListener("drop", (event) => {
      if (event.dataTransfer && event.dataTransfer.files.length) {
        input.files = event.dataTransfer.files;
        input.dispatchEvent(new Event("change", { bubbles: true }));
      }
    });
    zone.querySelectorAll("[data-needs-script]").forEach((part) => (part.hidden = false));
  }

  function copyButton(button) {
    const source = document.getElementById(button.dataset.copy);
    if (!navigator.clipboard || !source) return;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(source.value ?? source.textContent.trim());
      button.textContent = "Copied";
    });
  }

  function printButton(button) {
    button.hidden = false;
    button.addEventListener("click", () => print());
  }

  // On paper every table is open; afterwards the page is as it was.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((part) => (part.open = true));
  });
  addEventListener("afterprint", () => opened.forEach((part) => (part.open = false)));

  document.querySelectorAll("[data-theme-toggle]").forEach(themeToggle);
  document.querySelectorAll("[data-drop]").forEach(dropZone);
  document.querySelectorAll("[data-copy]").forEach(copyButton);
  document.querySelectorAll("[data-print]").forEach(printButton);
  document.querySelectorAll("[data-focus]").forEach((part) => part.focus());
})();

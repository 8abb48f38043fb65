// Draws each <div data-chart="ID"> from the JSON in <script id="ID">.
// The server's figures name roles, never colours; colours come from the page's CSS variables.
(() => {
  "use strict";
  const PRINT_WIDTH = 660;
  const CONFIG = { displayModeBar: false, responsive: true, showTips: false };
  const SHAPES = {
    baseline: { variable: "--series-baseline", symbol: "square", dash: "dash", pattern: "/" },
    candidate: { variable: "--series-candidate", symbol: "circle", dash: "solid", pattern: "" },
    second: { variable: "--series-second", symbol: "diamond", dash: "dot", pattern: "" },
    third: { variable: "--series-third", symbol: "triangle-up", dash: "dashdot", pattern: "" },
  };

  // A custom property may hold light-dark(); only a used colour tells which side is on.
  function colourReader() {
    const probe = document.createElement("span");
    probe.hidden = true;
    document.body.append(probe);
    const read = (variable) => {
      probe.style.color = `var(${variable})`;
      return getComputedStyle(probe).color;
    };
    return { read, done: () => probe.remove() };
  }

  function dressTrace(trace, read) {
    const look = SHAPES[(trace.meta || {}).role];
    if (!look) return trace;
    const colour = read(look.variable);
    const dressed = { ...trace };
    if (trace.type === "bar") {
      dressed.marker = { color: colour, pattern: { shape: look.pattern }, ...trace.marker };
    } else {
      dressed.line = { width: 2.5, dash: look.dash, color: colour, ...trace.line };
      dressed.marker = { size: 9, symbol: look.symbol, color: colour, ...trace.marker };
    }
    ["error_x", "error_y"].forEach((name) => {
      if (trace[name]) dressed[name] = { thickness: 1.5, width: 6, color: colour, ...trace[name] };
    });
    return dressed;
  }

  function axis(given, ink, muted, line) {
    return {
      gridcolor: line,
      zerolinecolor: line,
      linecolor: muted,
      tickcolor: line,
      ticks: "outside",
      tickfont: { color: muted, size: 13 },
      fixedrange: true,
      automargin: true,
      ...given,
      title: { font: { color: ink, size: 13 }, standoff: 12, ...(given || {}).title },
    };
  }

  function dressLayout(layout, read) {
    const ink = read("--ink");
    const muted = read("--muted");
    const line = read("--line");
    const family = getComputedStyle(document.body).fontFamily;
    const shapes = (layout.shapes || []).map((shape) => ({
      ...shape,
      line: { width: 1.5, color: shape.name === "here" ? read("--warn") : muted, ...shape.line },
    }));
    const annotations = (layout.annotations || []).map((note) => ({
      showarrow: false,
      font: { size: 13, color: note.name === "here" ? read("--warn") : muted },
      ...note,
    }));
    return {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 56, r: 16, t: 16, b: 48 },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: ink } },
      hoverlabel: { bgcolor: read("--surface"), bordercolor: muted, font: { color: ink, family } },
      ...layout,
      shapes,
      annotations,
      font: { family, size: 13, color: ink },
      xaxis: axis(layout.xaxis, ink, muted, line),
      yaxis: axis(layout.yaxis, ink, muted, line),
    };
  }

  function draw(print) {
    const colours = colourReader();
    document.querySelectorAll("[data-chart]").forEach((place) => {
      const figure = JSON.parse(document.getElementById(place.dataset.chart).textContent);
      const data = figure.data.map((trace) => dressTrace(trace, colours.read));
      const layout = dressLayout(figure.layout, colours.read);
      layout.height = place.classList.contains("short") || print ? 264 : 336;
      if (print) layout.width = PRINT_WIDTH;
      Plotly.react(place, data, layout, CONFIG);
    });
    colours.done();
  }

  // Paper is light and narrower than most windows: draw anew for it, then put things back.
  let themeBefore;
  addEventListener("beforeprint", () => {
    themeBefore = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    draw(true);
  });
  addEventListener("afterprint", () => {
    if (themeBefore) document.documentElement.dataset.theme = themeBefore;
    else delete document.documentElement.dataset.theme;
    draw();
  });
  document.addEventListener("themechange", () => draw());
  draw();
})();

"""Line drawings on a 24 by 24 ground, as one SVG path each."""

from __future__ import annotations

PATHS = {
    "check": "M4 12.5l5 5L20 6.5",
    "check-part": "M4 12.5l5 5 4.5-4.8M17 9h4M17 15h4",
    "cross": "M6 6l12 12M18 6L6 18",
    "question": "M9 9a3 3 0 1 1 4.6 2.5c-1 .7-1.6 1.3-1.6 2.5M12 18.5v.01",
    "up": "M6 14l6-6 6 6",
    "down": "M6 10l6 6 6-6",
    "equal": "M5 9.5h14M5 14.5h14",
    "clock": "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18M12 7v5l3 3",
    "play": "M7 5l11 7-11 7z",
    "stop": "M6 6h12v12H6z",
    "pencil": "M4 20l1-4L16 5l3 3L8 19z",
    "upload": "M12 16V4M7 9l5-5 5 5M4 16v4h16v-4",
    "info": "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18M12 11v6M12 7.5v.01",
    "theme": "M12 4a8 8 0 1 0 0 16V4",
}

"""Finds parts of a page that are hard to read, by WCAG 2.1 AA and the styles that the browser has computed.

Text needs a contrast of 4.5, large text 3 (1.4.3). Lines of charts and parts of bars need 3 against their background
(1.4.11).
"""

# An expression for browser.value. It returns the visible faults [{what, ratio, wanted}, …] and the number of checks.
FAULTS = """(() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const over = ([r, g, b, alpha = 1], under) => [r, g, b].map((part, i) => alpha * part + (1 - alpha) * under[i]);
  const backOf = (one) => {
    const layers = [];
    for (; one; one = one.parentElement) layers.push(numbers(getComputedStyle(one).backgroundColor));
    const canvas = matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255];
    return layers.reverse().reduce((under, layer) => over(layer, under), canvas);
  };
  const luminance = (color) => {
    const [r, g, b] = color.map((part) => part / 255).map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratioOf = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const faults = new Map();
  let looked = 0;
  const look = (one, color, back, wanted) => {
    ++looked;
    const ratio = ratioOf(over(numbers(color), back), back);
    const what = `${one.tagName.toLowerCase()}.${one.getAttribute("class") ?? ""} in #${one.closest("[id]")?.id ?? ""}`;
    if (ratio < wanted) faults.set(what, {what, ratio: Number(ratio.toFixed(2)), wanted});
  };
  for (const one of document.querySelectorAll("body *")) {
    if (!one.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
    const style = getComputedStyle(one);
    if ([...one.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim())) {
      const size = parseFloat(style.fontSize);
      look(one, style.color, backOf(one), size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5);
    }
    if (one.matches(".chart path, .spark polyline")) look(one, style.stroke, backOf(one), 3);
    if (one.matches(".bar span")) look(one, style.backgroundColor, backOf(one.closest(".bars")), 3);
  }
  return {looked, faults: [...faults.values()]};
})()"""

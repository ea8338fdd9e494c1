"use strict";
// Elements by hand. Text only ever goes in as text.

function element(name, attributes = {}, ...children) {
  return build(document.createElement(name), attributes, children);
}

function shape(name, attributes = {}, ...children) {
  return build(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function build(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

let choosers = 0;

/** A labelled select of {label, group} options that calls back with the chosen index. */
function chooser(label, options, chosen, onChoice) {
  choosers += 1;
  const id = `chooser-${choosers}`;
  const select = element("select", { id, onchange: () => onChoice(select.selectedIndex) });
  let group = null;
  for (const option of options) {
    if (!option.group) group = null;
    else if (!group || group.label !== option.group) select.append((group = element("optgroup", { label: option.group })));
    (group || select).append(element("option", {}, option.label || "–"));
  }
  select.selectedIndex = chosen;
  return element("div", { class: "chooser" }, element("label", { for: id }, label), select);
}

// What JavaScript adds; everything can be read, and a served hub searched, without it. No module: browsers load none from a disk.
"use strict";

// The list: where all environments are on the page, it is narrowed while one types; else the form asks the hub.
const form = document.querySelector("form[role=search]");
const list = document.querySelector(".environments");
if (form && list) {
  const whole = "whole" in list.dataset;
  const rows = [...list.children];
  const total = document.getElementById("found").textContent;
  const choose = () => {
    const wanted = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]));
    const words = wanted.q.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const { words: own, owner, compatibility, tags } = row.dataset;
      row.hidden =
        !words.every((word) => own.includes(word)) ||
        (wanted.tag && !tags.split(" ").includes(wanted.tag)) ||
        (wanted.owner && wanted.owner !== owner) ||
        (wanted.compatibility && wanted.compatibility !== compatibility);
    }
    const asked = Object.entries(wanted).filter(([, value]) => value);
    const count = rows.filter((row) => !row.hidden).length;
    const found = `${count} environment${count === 1 ? "" : "s"} found`;
    document.getElementById("found").textContent = asked.length ? found : total;
    try {
      history.replaceState(null, "", `?${new URLSearchParams(asked)}`);
    } catch {
      // a page from a disk may not change its address
    }
  };
  if (whole) {
    for (const [name, value] of new URLSearchParams(location.search)) {
      const field = form.elements.namedItem(name);
      if (field) field.value = value;
    }
    if (location.search) choose();
    form.addEventListener("input", choose);
    form.addEventListener("submit", (event) => (event.preventDefault(), choose()));
  } else {
    for (const field of form.querySelectorAll("select")) field.addEventListener("change", () => form.requestSubmit());
  }
}

// Commands: with the address that this hub has, or its folder, and a button to copy them.
const hub = new URL(document.body.dataset.root, location.href);
const file = hub.protocol === "file:";
const address = hub.href.replace(/[^/]*$/, "").replace(/\/$/, "");
for (const command of document.querySelectorAll(".command")) {
  const place = command.querySelector(".hub");
  place.textContent = file && command.textContent.startsWith("rove") ? decodeURIComponent(new URL(address).pathname) : address;
  const said = command.textContent;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-label", `Copy: ${said}`);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(said);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(place.parentElement); // to be copied by hand
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  command.prepend(button);
}
document.querySelector(".hub-note")?.remove();

(() => {
  const fresh = document.getElementById("fresh");
  const refresh = async () => {
    if (document.hidden) return;
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.status);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const sides = [...document.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
      document.getElementById("live").replaceWith(page.getElementById("live"));
      document.querySelectorAll(".scroll").forEach((box, n) => (box.scrollLeft = sides[n] || 0));
      fresh.textContent = "Brought up to date every five seconds";
      fresh.className = "";
    } catch {
      fresh.textContent = "Not answering since " + (fresh.dataset.since ||= new Date().toLocaleTimeString());
      fresh.className = "bad";
      return;
    }
    delete fresh.dataset.since;
  };
  fresh.textContent = "Brought up to date every five seconds";
  setInterval(refresh, 5000);
})();

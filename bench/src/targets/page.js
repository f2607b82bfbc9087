const box = document.getElementById('filter');
const found = document.getElementById('found');
const cases = [...document.querySelectorAll('.case')];
box.addEventListener('input', () => {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const one of cases) {
    const text = one.dataset.words.toLowerCase();
    one.hidden = !words.every(word => text.includes(word));
    shown += !one.hidden;
  }
  found.textContent = words.length ? `${shown} of ${cases.length} cases` : '';
});

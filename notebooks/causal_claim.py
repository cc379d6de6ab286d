# %% [markdown]
# # From training to a causal claim
#
# A small Transformer learns to copy strings of up to 5 digits with a position embedding that tells it the distance and
# the distance from the scale (`hinted:relative`). Which head carries the digit, by what does it find it, and is it its
# position codes that decide what it does on longer strings? One call each.

# %% 1. Before training: can this scheme do it?
import lengthlens as ll

print(ll.verdict("copy", "hinted:relative", train_max=5, test_max=20, scheme_options={"max_distance": 3}))

# %% 2. Train
config = ll.RunConfig("copy", "hinted:relative", {"max_distance": 3}, train_max=5, steps=400, n_heads=2, d_model=32)
model = ll.train(config).model.eval()

# %% 3. How far does it carry?
scores = ll.exact_match(model, ll.TASKS["copy"], [5, 10, 20], samples=200)
print({score.length: score.exact_match for score in scores})

# %% 4. What does each head attend to?
print(ll.attention_by_role(model, scales=[5, 10]))

# %% 5. Which head carries the digit? A step at n = 4 is patched into its counterpart at n = 8
patched = ll.patch_by_role(model, scale=4, onto=8, pairs=8)
print(patched.round(2))

# %% 6. The same from gradients, in two passes
print(ll.attribution_patching(model, scale=4, onto=8, pairs=8).round(2))

# %% 7. Which heads suffice?
least = ll.least_heads(model, scale=5, rows=64)
print(least)

# %% 8. What is left when those heads cannot see the key n back?
knocked = ll.ablate(model, scales=[5], relations=["i-j-n"], heads=least.heads, rows=64)
print(knocked)

# %% 9. To which tokens and positions is one answer owed?
owed = ll.relevance(model, "^ 7 3 5 = 7")
print(owed.tokens.round(decimals=1), owed.positions.round(decimals=1), f"conserved to {owed.conservation:.0e}")

# %% 10. Is that attribution any good?
print(ll.judge_relevance(model, scales=[5], rows=8).round(2))

# %% 11. Surgery: told that n is 3, it should write what stands 3 back
with ll.surgery(model, scale=3):
    told = model("^ 7 3 5 1 4 =").argmax(-1)[0, -1]
print("the answer to ^ 7 3 5 1 4 = begins with", model.task.vocab[int(told)])

# %% 12. The claim: it is the code that decides. With the code of the source on the key beside it, the answer is gone
healed = ll.healing(model, scales=[10], rows=64)
print(healed)

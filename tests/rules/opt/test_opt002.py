from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
net, loss_net = nn.Linear(4, 4).to("cuda"), nn.Linear(4, 1).to("cuda").eval()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss_net(net(torch.ones(8, 4, device="cuda"))).sum().backward()
    optimizer.step()
"""

LATENT = """
generator = nn.Linear(4, 4).to("cuda")
latent = torch.randn(1, 4, device="cuda").requires_grad_()
optimizer = torch.optim.Adam([latent], lr=0.1)
for _ in range(20):
    optimizer.zero_grad()
    generator(latent).pow(2).sum().backward()
    optimizer.step()
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example(
        "OPT002", severity="error", names=["head.weight", "optimizer"], line="optimizer = ", fix="add_param_group"
    )


def test_silent_on_a_network_in_eval_mode_that_passes_gradients_on():
    assert_silent("OPT002", LEGITIMATE)


def test_silent_where_an_input_is_optimized():
    assert_silent("OPT002", LATENT)

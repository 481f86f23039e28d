from saccade.report.document import to_terminal

LONG = "a_very_long_name_of_a_file_that_nobody_would_want_to_see_cut_at_any_width_of_any_terminal.jpg"


def test_tables_are_aligned_and_nothing_is_cut():
    table = f"| Arm | Mean |\n| --- | --: |\n| `{LONG}` | 1 |\n| b | 20 |\n"
    text = to_terminal(f"# What helps\n\n- **drloc**: helps\n\n{table}")
    lines = text.splitlines()
    assert lines[:2] == ["What helps", "=========="]
    assert "- drloc: helps" in lines
    assert f"{LONG}     1" in lines
    assert f"{'b'.ljust(len(LONG))}    20" in lines
    assert not any(mark in text for mark in ("|", "**", "`", "#"))


def test_a_bar_within_a_cell_stays_in_it():
    assert to_terminal("| a | b |\n| --- | --- |\n| x\\|y | z |").splitlines()[-1] == "x|y  z"

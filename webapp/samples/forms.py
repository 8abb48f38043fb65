from __future__ import annotations

from typing import Any

from django import forms

from webapp.samples.services import KEEP_DAYS, KEEP_DAYS_MOST

TOO_LARGE = "The file is larger than this site takes; upload a part of it."


class UploadForm(forms.Form):
    """A traffic file, a name for it, and for how long its text is kept."""

    file = forms.FileField(
        label="Traffic file",
        help_text="JSON lines (.jsonl), also packed as .gz.",
        error_messages={
            "required": "Choose a file to upload.",
            "empty": "The file is empty; choose one with at least one request in it.",
        },
        widget=forms.FileInput(attrs={"accept": ".jsonl,.json,.gz"}),
    )
    name = forms.CharField(
        label="Name",
        required=False,
        max_length=200,
        help_text="How it is called in lists; when left empty, what the file is called.",
    )
    keep_days = forms.IntegerField(
        label="Keep the text for this many days",
        initial=KEEP_DAYS,
        min_value=1,
        max_value=KEEP_DAYS_MOST,
        help_text="Then it is deleted by itself; what was measured with it stays.",
    )

    def __init__(self, *args: Any, too_large: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if too_large:
            self.fields["file"].error_messages["required"] = TOO_LARGE

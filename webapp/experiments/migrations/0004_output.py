from django.db import migrations, models


def keep_digests(apps, schema_editor):
    """What an older version kept: token digests alone."""
    runs = apps.get_model("experiments", "Run")
    for run in runs.objects.exclude(output_digests={}).iterator():
        answers = {name: {"digests": chain} for name, chain in run.output_digests.items()}
        run.output = {"answers": answers, "asked": len(answers)}
        run.save(update_fields=["output"])


class Migration(migrations.Migration):
    dependencies = [("experiments", "0003_chunks")]

    operations = [
        migrations.AddField(
            model_name="run",
            name="output",
            field=models.JSONField(blank=True, null=True),
        ),
        migrations.RunPython(keep_digests, migrations.RunPython.noop),
        migrations.RemoveField(model_name="run", name="output_digests"),
    ]

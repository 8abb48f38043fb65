from django.db import migrations

# An audit row may lose its actor when that person is deleted (SET NULL), and nothing else.
CREATE = """
CREATE FUNCTION core_audit_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.actor_id IS NULL
       AND (to_jsonb(NEW) - 'actor_id') = (to_jsonb(OLD) - 'actor_id') THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'audit events are never changed or deleted'
        USING ERRCODE = 'integrity_constraint_violation';
END;
$$;
CREATE TRIGGER core_audit_append_only BEFORE UPDATE OR DELETE ON core_auditevent
    FOR EACH ROW EXECUTE FUNCTION core_audit_append_only();
"""
DROP = """
DROP TRIGGER core_audit_append_only ON core_auditevent;
DROP FUNCTION core_audit_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("core", "0001_initial")]

    operations = [migrations.RunSQL(CREATE, DROP)]
